"""The conformance corpus' pass@k, majority@k and resume steps, by the functions that are given rows and no files."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from gym_spark.errors import ConfigError
from gym_spark.interchange.gym.jsonl import read_lines, torn_bytes
from gym_spark.interchange.gym.resume import plan_resume
from gym_spark.interchange.gym.rows import GymRow, answer_text, key_order, result_row
from gym_spark.interchange.gym.stored import measures_of, scores_of
from gym_spark.results import pass_majority as curves
from tests.corpus import Case, differences, steps

Json = dict[str, Any]
#: The peer stops at ids of both kinds; we order numbers before texts, and there is nothing to compare with.
STOPS = {"syn_mixed_ids"}


def codes(values: Sequence[Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
    seen: dict[Any, int] = {}
    return np.array([seen.setdefault(value, len(seen)) for value in values], np.int64)


@pytest.mark.parametrize(("case", "step"), steps("pass_majority"))
def test_curves_equal_the_peers(case: Case, step: str) -> None:
    expected = case.expected(step)
    options = case.steps()[step] | expected.get("options", {})
    path = case.folder / "rollouts.jsonl"
    if options.get("lenient_json"):
        raw = [json.loads(line) for line in path.read_text().splitlines()]
    elif expected["ok"] or case.name in STOPS:
        raw = [row for _, row in read_lines(path, blank="skip")]
    else:
        with pytest.raises(ConfigError):
            by_agent([row for _, row in read_lines(path, blank="skip")], options)
        return
    ours = by_agent(raw, options)
    if case.name not in STOPS:
        assert differences(ours, expected["by_agent"]) == []


def by_agent(raw: list[Json], options: Json) -> Json:
    rows = [result_row(row, f"row {number}", absent_index=0) for number, row in enumerate(raw)]
    runs: dict[str, list[int]] = defaultdict(list)
    for place in sorted(range(len(rows)), key=lambda place: key_order(rows[place].key)):
        if not rows[place].masked:
            runs[rows[place].run_key or ""].append(place)
    return {run: curve([rows[i] for i in own], [raw[i] for i in own], options) for run, own in runs.items()}


def curve(rows: list[GymRow], raw: list[Json], options: Json) -> Json:
    """One run's numbers, from the sums of three partitions of whole tasks."""
    fields = options.get("score_fields", {"accuracy": "reward"})
    if fields == {"accuracy": "reward"} and not all(isinstance(row.reward, int | float) for row in rows):
        raise ConfigError("a row has no number as reward")
    default = "extracted_answer" if any("extracted_answer" in row for row in raw) else None
    answer_key = options.get("answer_key", default)
    tasks, order = codes([row.key[0] for row in rows]), np.arange(len(rows))
    numbers = [numbers_of(one, row) for one, row in zip(raw, rows, strict=True)]
    scores = {
        name: curves.Score(
            np.array([row.get(field, 0.0) for row in numbers]), np.array([field in row for row in numbers], bool)
        )
        for name, field in fields.items()
    }
    answers = None
    if answer_key is not None:
        texts = [answer_text(row.get(answer_key), "row") for row in raw]
        answers = curves.Answers(codes(texts), np.array([text is not None for text in texts], bool))
    total = curves.merge(part_of(tasks, order, scores, answers, tasks % 3 == part) for part in range(3))
    metrics = curves.finish(total)
    patterns = ("pass@{k}", "pass@1[avg-of-{k}]", "majority@{k}")
    found: Json = {
        "answer_key": answer_key,
        "score_names": sorted(total.sums),
        "max_k": total.longest,
        "metrics": metrics,
        "avg_sample_std_dev": curves.mean_sample_deviation(total),
        "highest_k": {pattern: curves.highest_k(metrics, pattern, without=["no_answer"]) for pattern in patterns},
    }
    if "subset_key" in options:
        values = [row.get(options["subset_key"]) for row in raw]
        names = [str(value) if value else None for value in values]
        subsets = curves.Answers(codes(names), np.array([bool(value) for value in values]))
        named = dict(zip(subsets.codes.tolist(), names, strict=True))
        sums = curves.subset_sums(tasks, order, scores, answers, subsets)
        found["subset"] = curves.finish_subsets({str(named[code]): partial for code, partial in sums.items()})
    return found


def numbers_of(raw: Json, row: GymRow) -> dict[str, float]:
    reward = {"reward": float(row.reward)} if isinstance(row.reward, int | float) else {}
    scores = {name: value for name, value in scores_of(raw, row).items() if value is not None}
    return scores | measures_of(raw) | reward


def part_of(
    tasks: Any, order: Any, scores: dict[str, curves.Score], answers: curves.Answers | None, own: Any
) -> curves.Partial:
    return curves.partial_sums(
        tasks[own],
        order[own],
        {name: curves.Score(score.values[own], score.present[own]) for name, score in scores.items()},
        None if answers is None else curves.Answers(answers.codes[own], answers.present[own]),
    )


@pytest.mark.parametrize(("case", "step"), steps("resume"))
def test_what_is_left_to_do_equals_the_peers(case: Case, step: str) -> None:
    expected = case.expected(step)
    options = case.steps()[step] | expected.get("options", {})
    path = case.folder / "rollouts.jsonl"

    def beside(what: str) -> list[Json]:
        return [row for _, row in read_lines(path.with_name(f"rollouts_{what}.jsonl"), blank="skip")]

    done = [row for _, row in read_lines(path, blank="skip", torn="skip")]
    plan = plan_resume(
        beside("materialized_inputs"),
        done,
        beside("failures"),
        max_attempts=options.get("max_attempts", 3),
        retry_terminal_timeouts=options.get("retry_terminal_timeouts", False),
        longest_first=options.get("dispatch_longest_first", False),
        retry_invalid_judge_responses=options.get("retry_invalid_judge_responses", False),
    )
    shown = [
        {"_ng_task_index": one.row["_ng_task_index"], "_ng_rollout_index": one.row["_ng_rollout_index"]}
        | ({"_ng_attempt_index": one.attempt} if one.attempt else {})
        | ({"reuse_cached_deliverable": True} if one.reuse_deliverable else {})
        for one in plan.dispatch
    ]
    assert differences(shown, expected["dispatch"]) == []
    assert differences(plan.done, expected["already_done"]) == []
    assert expected["rollout_file_bytes_before_and_after"][0] == path.stat().st_size
    if "rollouts_after_migration" not in expected:
        assert expected["rollout_file_bytes_before_and_after"][1] == path.stat().st_size - torn_bytes(path)
