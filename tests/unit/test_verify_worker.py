"""One partition of the verify stage: every row in is one row out, whatever it holds."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from gym_spark.errors import ConfigError
from gym_spark.tables.schemas import VERIFICATIONS
from gym_spark.verify.base import Judgeable, Verdict, Verifier, load_verifier, verifier_digest
from gym_spark.verify.worker import BATCH_CHARS, COLUMNS_IN, columns_in, judge_batches

SCHEMA = pa.schema(
    [
        ("task_id", pa.string()),
        ("rollout_index", pa.int32()),
        ("attempt", pa.int32()),
        ("state", pa.string()),
        ("failure_kind", pa.string()),
        ("answer_state", pa.string()),
        ("output_text", pa.string()),
        ("response", pa.string()),
        ("environment_reward", pa.float64()),
        ("verifier_inputs", pa.string()),
        ("responses_create_params", pa.string()),
    ]
)


class Picky(Verifier):
    """Raises on one task, and scores by the response's status."""

    name = "picky"
    needs_response = True

    def verify(self, item: Judgeable) -> Verdict:
        if item.task_id == "t13":
            raise KeyError("no such field")
        assert item.response is not None
        return Verdict.scored(0.5, extracted_answer=item.response["status"], scores={"f1": 0.25})


class Odd(Verifier):
    """Returns or does what no verifier should, by the answer."""

    name = "odd"

    def __init__(self) -> None:
        self._ready = False

    def warm_up(self) -> None:
        self._ready = True

    def verify(self, item: Judgeable) -> Verdict:
        match item.output_text:
            case "exit":
                sys.exit(3)
            case "number as name":
                return Verdict("scored", 1.0, scores={1: 0.5})  # type: ignore[dict-item]  # the point of the test
            case "text as score":
                return Verdict("not_scored", None, scores={"x": "abc"})  # type: ignore[dict-item]  # the same
            case "no text":
                return Verdict.scored(1.0, scores={"\ud800": 0.5})
        return Verdict.scored(float(self._ready), extracted_answer="\ud800", detail={"seen": "\ud800"})


class Long(Verifier):
    """Extracts a megabyte."""

    name = "long"

    def verify(self, item: Judgeable) -> Verdict:
        return Verdict.scored(1.0, extracted_answer="x" * 1_000_000)


def row(number: int, **other: Any) -> dict[str, Any]:
    return {
        "task_id": f"t{number}",
        "rollout_index": 0,
        "attempt": 1,
        "state": "completed",
        "failure_kind": None,
        "answer_state": "complete",
        "output_text": "The answer is 4.",
        "response": '{"status": "completed"}',
        "environment_reward": None,
        "verifier_inputs": '{"expected_answer": "4"}',
        "responses_create_params": None,
    } | other


def run(batches: Iterator[pa.RecordBatch], name: str, limit_s: float = 10.0) -> Iterator[pa.RecordBatch]:
    return judge_batches(batches, run_id="r", verification_id="v", verifier_name=name, params={}, limit_s=limit_s)


def judged(rows: list[dict[str, Any]], name: str, limit_s: float = 10.0) -> list[dict[str, Any]]:
    batches = (pa.RecordBatch.from_pylist(rows[start : start + 7], schema=SCHEMA) for start in range(0, len(rows), 7))
    rows_out: list[dict[str, Any]] = pa.Table.from_batches(
        list(run(batches, name, limit_s)), schema=VERIFICATIONS.schema
    ).to_pylist()
    return rows_out


def test_the_input_columns_are_the_documented_ones() -> None:
    assert tuple(SCHEMA.names) == COLUMNS_IN
    small = [name for name in SCHEMA.names if name not in ("response", "responses_create_params")]
    assert columns_in(Long()) == small
    assert set(columns_in(Picky())) - set(small) == {"response"}
    assert set(columns_in(load_verifier("llm_judge", {}))) - set(small) == {"responses_create_params"}


def test_every_row_has_the_tables_schema_and_the_runs_constants() -> None:
    batch = pa.RecordBatch.from_pylist([row(1)], schema=SCHEMA)
    (out,) = run(iter([batch]), "numeric")
    assert out.schema.equals(VERIFICATIONS.schema, check_metadata=True)
    (found,) = out.to_pylist()
    assert found.pop("verified_at").tzinfo is not None
    assert json.loads(found.pop("detail")) == {"literal": "4"}
    assert found == {
        "run_id": "r",
        "verification_id": "v",
        "unsafe": None,
        "task_id": "t1",
        "rollout_index": 0,
        "attempt": 1,
        "verifier": "numeric",
        "verifier_digest": verifier_digest("numeric", {}),
        "state": "scored",
        "reward": 1.0,
        "extracted_answer": "4",
        "scores": [],
    }


def test_p52_one_row_that_makes_the_verifier_raise_leaves_the_others_scored() -> None:
    found = judged([row(number) for number in range(20)], f"{__name__}:Picky")
    assert [each["task_id"] for each in found] == [f"t{number}" for number in range(20)]
    assert [each["task_id"] for each in found if each["state"] != "scored"] == ["t13"]
    assert (found[13]["state"], found[13]["reward"]) == ("verifier_error", None)
    assert json.loads(found[13]["detail"]) == {"reason": "KeyError: 'no such field'"}
    assert (found[12]["reward"], found[12]["extracted_answer"]) == (0.5, "completed")
    assert found[12]["scores"] == [("f1", 0.25)]


def test_p52_every_odd_verdict_is_one_row_and_the_rest_are_scored() -> None:
    answers = ["exit", "fine", "number as name", "text as score", "fine", "no text"]
    found = judged([row(number, output_text=text) for number, text in enumerate(answers)], f"{__name__}:Odd")
    states = {text: each["state"] for text, each in zip(answers, found, strict=True)}
    assert states == {text: "scored" if text == "fine" else "verifier_error" for text in answers}
    assert (found[1]["reward"], found[1]["extracted_answer"], found[1]["detail"]) == (1.0, "?", '{"seen": "?"}')
    assert all("reason" in json.loads(each["detail"]) for each in found if each["state"] != "scored")


@pytest.mark.parametrize("inputs", ["{", "[1]", "[" * 100_000, "{}"])
def test_p52_unusable_verifier_inputs_are_verifier_error(inputs: str) -> None:
    found = judged([row(1, verifier_inputs=inputs), row(2)], "numeric")
    assert [(each["state"], each["reward"]) for each in found] == [("verifier_error", None), ("scored", 1.0)]


def test_the_response_is_neither_wanted_nor_parsed_for_a_verifier_that_does_not_read_it() -> None:
    (out,) = run(iter([pa.RecordBatch.from_pylist([row(1)], schema=SCHEMA).drop_columns(["response"])]), "numeric")
    assert out.to_pylist()[0]["state"] == "scored"
    assert judged([row(1, response="{")], "numeric")[0]["state"] == "scored"
    assert judged([row(1, response="{")], f"{__name__}:Picky")[0]["state"] == "verifier_error"


@pytest.mark.parametrize("verifier", ["numeric", "math"])
def test_p19_a_failed_rollout_is_not_scored_with_its_reason(verifier: str) -> None:
    failed = row(1, state="failed", failure_kind="timeout", output_text=None, response=None)
    found = judged([failed, row(2), failed | {"task_id": "t3"}], verifier)
    assert [each["state"] for each in found] == ["not_scored", "scored", "not_scored"]
    assert [each["task_id"] for each in found] == ["t1", "t2", "t3"]
    assert [each["reward"] for each in found] == [None, 1.0, None]
    assert json.loads(found[0]["detail"]) == {"reason": "rollout failed: timeout"}


def test_p22_a_hang_in_the_middle_of_a_partition_is_one_verify_timeout() -> None:
    rows = [row(1), row(2, output_text="9^{9^{9^{9}}}"), row(3)]
    found = judged(rows, "math", limit_s=1.0)
    assert [(each["state"], each["reward"]) for each in found] == [
        ("scored", 1.0),
        ("verify_timeout", None),
        ("scored", 1.0),
    ]


def test_an_empty_partition_yields_nothing_and_bad_parameters_stop_it() -> None:
    empty = pa.RecordBatch.from_pylist([], schema=SCHEMA)
    assert list(run(iter([]), "math")) == []
    assert list(run(iter([empty]), "numeric")) == []
    with pytest.raises(ConfigError, match="There is no verifier 'numerics'"):
        list(run(iter([]), "numerics"))


def test_batches_out_are_bounded_in_size_and_batches_in_are_streamed() -> None:
    taken = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal taken
        for number in range(20):
            taken += 1
            yield pa.RecordBatch.from_pylist([row(number)], schema=SCHEMA)

    out = run(batches(), f"{__name__}:Long")
    first = next(out)
    assert first.nbytes < 2 * BATCH_CHARS
    assert taken < 10
    assert first.num_rows + sum(batch.num_rows for batch in out) == 20
