"""Builders of the rows and frames that the Spark tests work on: a row as the tables hold it, what matters given."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from gym_spark.tables.schemas import ROLLOUTS, TASKS, VERIFICATIONS

Row = dict[str, Any]

RUN: Final = "run"
VERIFICATION: Final = "v"
AT: Final = datetime(2026, 1, 1, tzinfo=UTC)


def frame_of(spark: SparkSession, rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> DataFrame:
    """Return rows as a frame; an absent column is null."""
    return spark.createDataFrame(pa.Table.from_pylist(list(rows), schema=schema))


def spread(frame: DataFrame, partitions: int) -> DataFrame:
    """Return the same rows shuffled over that many partitions."""
    return frame.repartition(partitions) if partitions > 1 else frame.coalesce(1)


def task(task_id: str, **other: Any) -> Row:
    """Return a row of `tasks` whose right answer is 4."""
    return {
        "benchmark": "quiz",
        "version": "1",
        "task_id": task_id,
        "task_index": 0,
        "shard": 0,
        "fingerprint": "f",
        "responses_create_params": '{"input": [{"role": "user", "content": "2+2?"}]}',
        "verifier_inputs": '{"expected_answer": "4"}',
        "metadata": "{}",
    } | other


def tasks(spark: SparkSession, *rows: Row) -> DataFrame:
    """Return rows of `tasks` as a frame."""
    return frame_of(spark, rows, TASKS.schema)


def rollout(task_id: str, rollout_index: int = 0, attempt: int = 1, **other: Any) -> Row:
    """Return a row of `rollouts` that was completed with the answer 4."""
    return {
        "run_id": RUN,
        "shard": 0,
        "task_id": task_id,
        "task_index": 0,
        "rollout_index": rollout_index,
        "attempt": attempt,
        "state": "completed",
        "answer_state": "complete",
        "usage": {"input_tokens": 10, "output_tokens": 5},
        "model_calls": 1,
        "requests": 1,
        "turns": 1,
        "started_at": AT,
        "completed_at": AT,
        "output_text": "4",
        "response": json.dumps({"status": "completed"}),
    } | other


def failure(task_id: str, rollout_index: int = 0, attempt: int = 1, *, terminal: bool = False) -> Row:
    """Return a row of `rollouts` that failed."""
    return rollout(
        task_id,
        rollout_index,
        attempt,
        state="failed",
        failure_kind="bad_request" if terminal else "timeout",
        failure_stage="endpoint",
        failure_terminal=terminal,
        error="no answer",
        answer_state=None,
        usage=None,
        output_text=None,
        response=None,
    )


def rollouts(spark: SparkSession, *rows: Row) -> DataFrame:
    """Return rows of `rollouts` as a frame."""
    return frame_of(spark, rows, ROLLOUTS.schema)


def verdict(task_id: str, rollout_index: int = 0, attempt: int = 1, **other: Any) -> Row:
    """Return a row of `verifications`; without a `state` it is scored."""
    return {
        "run_id": RUN,
        "verification_id": VERIFICATION,
        "task_id": task_id,
        "rollout_index": rollout_index,
        "attempt": attempt,
        "verifier": "exact_match",
        "verifier_digest": "d",
        "state": "scored",
        "scores": [],
        "verified_at": AT,
    } | other


def verifications(spark: SparkSession, *rows: Row) -> DataFrame:
    """Return rows of `verifications` as a frame."""
    return frame_of(spark, rows, VERIFICATIONS.schema)
