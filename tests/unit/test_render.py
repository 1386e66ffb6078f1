"""What a person sees: names are shown as they are, whatever they hold, and odd requests can be looked at."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from gym_spark.cli.render import ProgressLine, profile_table
from gym_spark.results.run_profile import Coverage, Metric, RunProfile
from gym_spark.results.samples import sample_of
from gym_spark.rollout.progress import Progress

COVERAGE = Coverage(
    planned_tasks=1,
    planned=2,
    completed=1,
    failed=1,
    missing=0,
    scored=0,
    unscored=1,
    tasks_without_score=1,
    input_tokens=None,
    output_tokens=None,
    failures={"[/odd]": 1},
    graded_with_exception={},
    exceptions_count_as="count",
    answer_states={"[/state]": 1},
    verdicts={"verifier_error": 1},
    reasons={"verifier_error": "KeyError: '[/x]'"},
    mean_of_complete=None,
    missing_shards={},
)


def shown(model: str) -> str:
    """Return the printed profile of a run whose every text could be taken for markup."""
    metrics = tuple(Metric("mean[/]", kind, 0.5, None, None, None, 1, 2, "no[/b]") for kind in ("planned", "scored"))
    profile = RunProfile("r[/]", "quiz", "1[/]", model, "v[/]", 2, "finished", "spent[/]", COVERAGE, metrics)
    console = Console(file=io.StringIO(), width=400)
    profile_table(profile, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("model", ["m[/x]", "[red]m[/red]", "org/m:smile:7b"])
def test_names_are_printed_as_they_are(model: str) -> None:
    text = shown(model)
    for expected in (f"r[/]: quiz on {model}", "mean[/]", "v[/]", "1 [/odd]", "1 [/state]", "'[/x]'", "spent[/]"):
        assert expected in text


@pytest.mark.parametrize(
    ("given", "prompt"),
    [
        ("2+2?", "2+2?"),
        ([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}], "2+2?"),
        (
            [{"role": "user", "content": [{"type": "input_text", "text": "2+"}, {"type": "input_text", "text": "2?"}]}],
            "2+\n2?",
        ),
        ([{"role": "user", "content": [{"type": "input_image"}, "what?"]}], '{"type": "input_image"}\nwhat?'),
        ([{"type": "function_call_output", "output": "4"}], '{"type": "function_call_output", "output": "4"}'),
        (["hello"], "hello"),
        ([["é"]], "é"),
        ([{"content": None}], "null"),
        ([], ""),
        ({"content": "2+2?"}, "2+2?"),
        (7, "7"),
        (None, "null"),
    ],
)
def test_a_request_of_any_shape_can_be_looked_at(given: Any, prompt: str) -> None:
    row = {
        "task_id": "t",
        "rollout_index": 0,
        "responses_create_params": json.dumps({"input": given}),
        "verifier_inputs": "{}",
        "output_text": "4",
        "extracted_answer": None,
        "verdict": None,
        "reward": None,
        "answer_state": "complete",
        "error": None,
        "reason": None,
    }
    assert sample_of(row).prompt == prompt
    assert sample_of(row | {"responses_create_params": "{}"}).prompt == ""


def test_progress_says_that_it_waits_until_there_is_a_rate(capsys: pytest.CaptureFixture[str]) -> None:
    ProgressLine()(Progress(total=10, elapsed_s=2.0, in_flight=4, retries=1))
    assert capsys.readouterr().err == "waiting for the first of 10 rollouts, 4 in flight, 1 failed tries\n"
    ProgressLine()(Progress(total=10, elapsed_s=2.0, in_flight=4, done=4, output_tokens=100))
    assert capsys.readouterr().err == "4/10 rollouts, 4 in flight, 2.0 rollouts/s, 50 tokens/s, ETA 3 s\n"
