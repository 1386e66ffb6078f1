"""Outcomes of rollouts as Arrow rows of the `rollouts` table. Runs on workers; no pyspark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from gym_spark.endpoint.wire import sum_usage
from gym_spark.errors import RolloutError
from gym_spark.harness.base import Episode
from gym_spark.tables.schemas import ROLLOUTS

#: What a worker needs of a planned rollout. Input columns of the collect stage.
PENDING_SCHEMA: pa.Schema = pa.schema(
    [
        pa.field("task_id", pa.string(), nullable=False),
        pa.field("task_index", pa.int64(), nullable=False),
        pa.field("shard", pa.int32(), nullable=False),
        pa.field("rollout_index", pa.int32(), nullable=False),
        pa.field("attempt", pa.int32(), nullable=False),
        pa.field("responses_create_params", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class Pending:
    """One rollout to do."""

    task_id: str
    task_index: int
    shard: int
    rollout_index: int
    attempt: int
    responses_create_params: str


def completed(run_id: str, pending: Pending, episode: Episode, started_at: datetime) -> dict[str, Any]:
    """Return the row of a rollout that came to an end."""
    last = episode.replies[-1]
    usage = sum_usage(reply.usage for reply in episode.replies)
    return _row(run_id, pending, started_at) | {
        "state": "completed",
        "answer_state": last.answer_state,
        "output_text": storable(last.output_text),
        "usage": asdict(usage),
        "model_calls": len(episode.replies),
        "requests": sum(reply.requests for reply in episode.replies),
        "turns": len(episode.replies),
        "latency_ms": sum(reply.latency_ms for reply in episode.replies),
        "queue_ms": sum(reply.queue_ms for reply in episode.replies),
        "replica": last.replica,
        "environment_reward": episode.environment_reward,
        "response": to_json(last.response),
        "trajectory": to_json(list(episode.trajectory)),
    }


def failed(run_id: str, pending: Pending, error: RolloutError, started_at: datetime) -> dict[str, Any]:
    """Return the row of a rollout that failed: kind, stage and message, and no answer."""
    return _row(run_id, pending, started_at) | {
        "state": "failed",
        "failure_kind": error.kind,
        "failure_stage": error.stage,
        "failure_terminal": error.terminal,
        "error": storable(str(error)),
        "model_calls": 0,
        "requests": error.requests,
        "turns": 0,
    }


def to_batch(rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    """Return rows as one batch of the `rollouts` schema; an absent column is null."""
    return pa.RecordBatch.from_pylist(list(rows), schema=ROLLOUTS.schema)


def storable(text: str | None) -> str | None:
    """Replace lone surrogates, which neither Arrow nor UTF-8 can hold: one odd answer must not fail its batch."""
    return text if text is None else text.encode("utf-8", "replace").decode("utf-8")


def to_json(value: Any) -> str:
    """Return JSON whose escapes keep even lone surrogates."""
    return json.dumps(value, separators=(",", ":"))


def now() -> datetime:
    """Return the time of an event, in UTC."""
    return datetime.now(UTC)


def _row(run_id: str, pending: Pending, started_at: datetime) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "shard": pending.shard,
        "task_id": pending.task_id,
        "task_index": pending.task_index,
        "rollout_index": pending.rollout_index,
        "attempt": pending.attempt,
        "started_at": started_at,
        "completed_at": now(),
    }
