"""A run's rollouts to look at, and as JSON Lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from gym_spark.errors import ConfigError
from gym_spark.interchange.row_files import exported_rows, write_lines
from gym_spark.results.samples import sample_of, sampled
from gym_spark.tables.schemas import ROLLOUTS
from tests.spark.frames import failure, rollout, rollouts, spread, task, tasks, verdict, verifications


def test_the_same_rollouts_are_sampled_in_any_partitioning(spark: SparkSession) -> None:
    """A pick by key, across tasks: however the rows lie, and a larger sample contains the smaller."""
    names = [f"t{number:02d}" for number in range(30)]
    stored = rollouts(spark, *(rollout(name, index) for name in names for index in range(2)))
    known = tasks(spark, *(task(name) for name in names))
    judged = verifications(spark, *(verdict(name, 0, reward=1.0) for name in names))

    def picked(rows: DataFrame, count: int) -> set[tuple[str, int, str | None]]:
        found = sampled(rows, known, judged, count=count).collect()
        keys = {(row["task_id"], row["rollout_index"], row["verdict"]) for row in found}
        assert len(keys) == len(found) == min(count, 60)
        return keys

    few = picked(spread(stored, 1), 6)
    assert picked(spread(stored, 7), 6) == few
    assert few < picked(stored, 12)
    assert len({name for name, _, _ in few}) == 6, "no two of one task"
    assert {name for name, _, _ in picked(stored, 30)} == set(names)
    assert {state for _, index, state in picked(stored, 100) if index == 0} == {"scored"}
    assert {state for _, index, state in picked(stored, 100) if index == 1} == {None}


def test_a_sample_reads_as_prompt_answer_and_verdict(spark: SparkSession) -> None:
    """A judged, an unjudged and a failed rollout of one task, as a person sees them."""
    stored = rollouts(spark, rollout("a"), rollout("a", 1, output_text=""), failure("a", 2))
    judged = verifications(
        spark, verdict("a", reward=1.0, extracted_answer="4"), verdict("a", 2, state="not_scored", reward=None)
    )
    rows = sampled(stored, tasks(spark, task("a")), judged, count=5).collect()
    samples = sorted((sample_of(row.asDict()) for row in rows), key=lambda sample: sample.rollout_index)
    assert {(sample.prompt, sample.expected) for sample in samples} == {("2+2?", "4")}
    seen = [(sample.answer, sample.extracted, sample.verdict, sample.reward) for sample in samples]
    assert seen == [
        ("4", "4", "scored", 1.0),
        ("", None, "not judged yet", None),
        ("[failed: no answer]", None, "not_scored", None),
    ]


def strict(line: str) -> dict[str, Any]:
    """Read one line as JSON, without NaN or Infinity."""
    loaded: dict[str, Any] = json.loads(line, parse_constant=pytest.fail)
    return loaded


def test_export_has_one_strict_json_line_per_attempt_with_every_column(spark: SparkSession, tmp_path: Path) -> None:
    """Nulls are written, text of any kind stays one line, key order holds, the verdict is inside."""
    odd = 'quote " newline \n separator \u2028 snowman \u2603 emoji \U0001f600 nul \x00 end'
    stored = rollouts(
        spark,
        rollout("b", task_index=1, output_text=odd, latency_ms=1.5),
        rollout("a", 1),
        failure("a", 0),
        rollout("a", 0, attempt=2),
    )
    judged = verifications(
        spark,
        verdict("b", reward=0.5, scores=[("f1", 0.25)], extracted_answer=odd, detail='{"why": "half"}'),
        verdict("a", 0, state="not_scored", detail='{"reason": "rollout failed: timeout"}'),
    )
    target = tmp_path / "out" / "rollouts.jsonl"
    assert write_lines(exported_rows(spread(stored, 3), tasks(spark, task("a")), judged, partitions=2), target) == 4
    text = target.read_text(encoding="utf-8")
    assert text.count("\n") == 4
    lines = [strict(line) for line in text.removesuffix("\n").split("\n")]
    assert [(line["task_id"], line["rollout_index"], line["attempt"]) for line in lines] == [
        ("a", 0, 1),
        ("a", 0, 2),
        ("a", 1, 1),
        ("b", 0, 1),
    ]
    for line in lines:
        assert line.keys() == {*ROLLOUTS.columns, "responses_create_params", "verifier_inputs", "verification"}
    failed, unjudged, _, last = lines
    assert json.loads(failed["verifier_inputs"]) == {"expected_answer": "4"}
    assert last["verifier_inputs"] is None, "a task that is gone costs no row"
    assert (failed["output_text"], failed["usage"], failed["failure_terminal"]) == (None, None, False)
    assert failed["verification"]["state"] == "not_scored"
    assert failed["verification"]["reward"] is None
    assert unjudged["verification"] is None
    assert last["usage"] == {
        "input_tokens": 10,
        "output_tokens": 5,
        "reasoning_tokens": None,
        "cached_tokens": None,
        "total_tokens": None,
    }
    assert (last["output_text"], last["latency_ms"], last["started_at"][:19]) == (odd, 1.5, "2026-01-01T00:00:00")
    assert last["verification"] == {
        "verification_id": "v",
        "state": "scored",
        "reward": 0.5,
        "extracted_answer": odd,
        "scores": {"f1": 0.25},
        "unsafe": None,
        "detail": '{"why": "half"}',
    }
    assert [path.name for path in target.parent.iterdir()] == ["rollouts.jsonl"]


def test_export_of_nothing_is_an_empty_file_and_a_wrong_place_is_the_users_mistake(
    spark: SparkSession, tmp_path: Path
) -> None:
    """No rollout, no line; a target below a file is refused in one sentence, before anything is read."""
    lines = exported_rows(rollouts(spark), tasks(spark), verifications(spark), partitions=1)
    target = tmp_path / "none.jsonl"
    assert write_lines(lines, target) == 0
    assert target.read_text() == ""
    with pytest.raises(ConfigError, match=r"none.jsonl/x.jsonl' cannot be written .*; choose another --output\."):
        write_lines(lines, target / "x.jsonl")
