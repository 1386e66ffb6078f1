"""The verify stage over a small lake: one verdict per stored attempt, whatever the attempt holds."""

from __future__ import annotations

import contextlib
import io
import json
import os
from datetime import timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from gym_spark.config import PartSpec
from gym_spark.tables.lake import Lake
from gym_spark.tables.schemas import ROLLOUTS, TASKS, VERIFICATIONS
from gym_spark.verify.base import Judgeable, Verdict, Verifier, verifier_digest
from gym_spark.verify.stage import newest, standing, unverified, verdicts
from tests.spark.frames import (
    AT,
    RUN,
    VERIFICATION,
    Row,
    failure,
    rollout,
    rollouts,
    spread,
    task,
    tasks,
    verdict,
    verifications,
)
from tests.spark.verifiers import POISON, Fragile

EXACT = PartSpec(name="exact_match")
FRAGILE = PartSpec(name=f"{Fragile.__module__}:{Fragile.__name__}")

Key = tuple[str, int, int]


def verify(lake: Lake, verification_id: str = VERIFICATION) -> dict[Key, Row]:
    """Judge what the verification has not judged yet, append it, and return all of its rows by key."""
    here = {"run_id": RUN, "verification_id": verification_id}
    todo = unverified(lake.read(ROLLOUTS, run_id=RUN), lake.read(TASKS), lake.read(VERIFICATIONS, **here))
    lake.append(VERIFICATIONS, verdicts(todo, verifier=EXACT, limit_s=10.0, **here))
    rows = lake.read(VERIFICATIONS, **here).collect()
    found = {(row["task_id"], row["rollout_index"], row["attempt"]): row.asDict() for row in rows}
    assert len(found) == len(rows), "an attempt has two verdicts"
    return found


def outcome(row: Row) -> tuple[str, float | None, str | None]:
    """Return state, reward and the reason where there is none."""
    return row["state"], row["reward"], json.loads(row["detail"] or "{}").get("reason")


def test_every_stored_attempt_gets_one_verdict_once(lake: Lake) -> None:
    """Right, wrong and failed attempts: a reward or a reason; a second verify judges only what is new since."""
    lake.ensure(TASKS, ROLLOUTS, VERIFICATIONS)
    lake.append_rows(TASKS, [task("a"), task("b")])
    lake.append_rows(ROLLOUTS, [rollout("a"), rollout("a", 1, output_text="5"), failure("b"), rollout("b", attempt=2)])
    first = verify(lake)
    assert {key: outcome(row) for key, row in first.items()} == {
        ("a", 0, 1): ("scored", 1.0, None),
        ("a", 1, 1): ("scored", 0.0, None),
        ("b", 0, 1): ("not_scored", None, "rollout failed: timeout"),
        ("b", 0, 2): ("scored", 1.0, None),
    }
    for row in first.values():
        assert (row["verifier"], row["verifier_digest"]) == ("exact_match", verifier_digest("exact_match", {}))
    lake.append_rows(ROLLOUTS, [rollout("a", 2, output_text=" 4 "), rollout("a", run_id="other")])
    second = verify(lake)
    assert second.pop(("a", 2, 1))["reward"] == 1.0
    assert second == first, "the old verdicts are the old rows"
    # Another verification of the same rollouts stands beside it.
    assert len(verify(lake, "other")) == 5
    assert lake.read(VERIFICATIONS).count() == 10


def test_the_newest_verdict_of_an_attempt_stands(spark: SparkSession) -> None:
    """Asked again, or judged by two jobs: the last one, in whichever order they are read; other attempts apart."""
    rows = [
        verdict("a", state="judge_failed"),
        verdict("a", reward=1.0, verified_at=AT + timedelta(seconds=1)),
        verdict("b", reward=1.0),
        verdict("b", state="judge_failed", verified_at=AT + timedelta(microseconds=1)),
        verdict("b", attempt=2, reward=0.0),
    ]
    for order in (rows, rows[::-1]):
        for partitions in (1, 7):
            frame = spread(verifications(spark, *order), partitions)
            found = {(row["task_id"], row["attempt"]): row["state"] for row in newest(frame, "state").collect()}
            assert found == {("a", 1): "scored", ("b", 1): "judge_failed", ("b", 2): "scored"}
            again = standing(frame, ["judge_failed"]).where("again").drop("again").collect()
            assert [tuple(row) for row in again] == [("b", 0, 1)]


def test_p29_a_verifier_that_raises_on_one_row_costs_one_verdict(spark: SparkSession) -> None:
    """A user's `module:Class` in Spark's workers: its own row says what was raised, the others are scored."""
    names = [*(f"t{number}" for number in range(9)), POISON]
    stored = rollouts(spark, *(rollout(name, output_text="x" * at) for at, name in enumerate(names)))
    todo = unverified(stored, tasks(spark, *(task(name) for name in names)), verifications(spark))
    judged = verdicts(todo, run_id=RUN, verification_id=VERIFICATION, verifier=FRAGILE, limit_s=10.0)
    found = {row["task_id"]: row.asDict() for row in judged.collect()}
    assert outcome(found.pop(POISON)) == ("verifier_error", None, "KeyError: 'no such field'")
    assert {name: row["reward"] for name, row in found.items()} == {f"t{n}": float(n) for n in range(9)}
    assert all(row["scores"] == {"length": 1.0} for row in found.values())


def test_verdicts_are_the_same_for_any_partitioning_and_none_for_no_rollouts(spark: SparkSession) -> None:
    """1 or 7 partitions judge alike; with nothing stored there is nothing to judge."""
    stored = rollouts(spark, *(rollout(f"t{number % 4}", number, output_text=str(number)) for number in range(8)))
    known = tasks(
        spark, *(task(f"t{number}", verifier_inputs=json.dumps({"expected_answer": number})) for number in range(4))
    )

    def rewards(partitions: int) -> list[tuple[str, int, float]]:
        todo = spread(unverified(stored, known, verifications(spark)), partitions)
        judged = verdicts(todo, run_id=RUN, verification_id=VERIFICATION, verifier=EXACT, limit_s=10.0)
        return sorted((row["task_id"], row["rollout_index"], row["reward"]) for row in judged.collect())

    found = rewards(1)
    assert found == sorted((f"t{n % 4}", n, float(n < 4)) for n in range(8))
    assert rewards(7) == found
    nothing = unverified(rollouts(spark), known, verifications(spark))
    assert verdicts(nothing, run_id=RUN, verification_id=VERIFICATION, verifier=EXACT, limit_s=10.0).isEmpty()


class Reads(Verifier):
    """Rewards by the length of the stored response, which it asks for."""

    name = "reads"
    needs_response = True

    def verify(self, item: Judgeable) -> Verdict:
        assert item.response is not None
        return Verdict.scored(float(len(item.response["text"])))


def test_a_large_response_reaches_only_the_verifier_that_reads_it(spark: SparkSession, lake: Lake) -> None:
    """10 MB a rollout: neither read from the lake nor sent to a worker for `exact_match`, and whole for `Reads`."""
    large = 10 * 2**20
    lake.ensure(TASKS, ROLLOUTS, VERIFICATIONS)
    lake.append_rows(TASKS, [task("a")])
    for index in range(3):
        lake.append_rows(ROLLOUTS, [rollout("a", index, response=json.dumps({"text": "x" * large}))])
    todo = unverified(lake.read(ROLLOUTS, run_id=RUN), lake.read(TASKS), verifications(spark))

    def judged(verifier: PartSpec) -> DataFrame:
        return verdicts(todo, run_id=RUN, verification_id=VERIFICATION, verifier=verifier, limit_s=10.0)

    assert [row["reward"] for row in judged(EXACT).collect()] == [1.0] * 3
    assert "response:string" not in plan_of(judged(EXACT))
    reads = PartSpec(name=f"{Reads.__module__}:{Reads.__name__}")
    assert "response:string" in plan_of(judged(reads))
    assert [row["reward"] for row in judged(reads).collect()] == [float(large)] * 3


def plan_of(frame: DataFrame) -> str:
    """Return how Spark will compute a frame, files that it reads and their columns included."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        frame.explain("formatted")
    return told.getvalue()


def descendants(pid: int) -> set[int]:
    """Return the processes below one, itself left out."""
    found: set[int] = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == pid:
            child = int(entry.name)
            found |= {child, *descendants(child)}
    return found


def test_p22_an_expression_that_hangs_costs_its_own_verdict_in_a_spark_worker(spark: SparkSession) -> None:
    """`9^{9^{9^{9}}}` is back within 4 s as `verify_timeout`; the next answer is scored; no child is left."""
    answers = ["4", "9^{9^{9^{9}}}", "4"]
    stored = rollouts(spark, *(rollout("a", index, output_text=text) for index, text in enumerate(answers)))
    # In order and in one worker: the first answer bears the start of the child.
    todo = (
        unverified(stored, tasks(spark, task("a")), verifications(spark))
        .coalesce(1)
        .sortWithinPartitions("rollout_index")
    )
    judged = verdicts(todo, run_id=RUN, verification_id="m", verifier=PartSpec(name="math"), limit_s=2.0)
    rows = sorted(judged.collect(), key=lambda row: int(row["rollout_index"]))
    assert [outcome(row.asDict()) for row in rows] == [
        ("scored", 1.0, None),
        ("verify_timeout", None, "no verdict within 2 s"),
        ("scored", 1.0, None),
    ]
    assert 1.9 < (rows[1]["verified_at"] - rows[0]["verified_at"]).total_seconds() < 4.0
    commands = [Path(f"/proc/{pid}/cmdline") for pid in descendants(os.getpid())]
    assert not [path for path in commands if path.exists() and b"gym_spark.verify.isolated" in path.read_bytes()]
