"""Outcomes of rollouts as Arrow rows of the `rollouts` table. Runs on workers; no pyspark."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from gym_spark.endpoint.masking import mask
from gym_spark.endpoint.usage import Usage, sum_usage, usage_row
from gym_spark.errors import RolloutError
from gym_spark.harness.base import Episode
from gym_spark.tables.schemas import ROLLOUTS

#: Characters of text in one row: several times what the largest answer takes, and half of what one Arrow or Parquet
#: value can hold if each takes four bytes.
ROW_TEXT: Final = 1 << 28
#: Characters of text in one batch, unless one row alone has more: a part of 8 MB, or of 32 if each takes four bytes.
BATCH_TEXT: Final = 1 << 23
#: Columns of a row that come from the plan and our own clock, so that they can be stored whatever the others hold.
_OURS: Final = ("run_id", "shard", "task_id", "task_index", "rollout_index", "attempt", "started_at", "completed_at")
#: Columns that tell what a refused row has cost, with what stands for them where they cannot be stored either.
_SPENT: Final = {"usage": None, "requests": 0}

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
    """Return the row of a rollout that came to an end, without what it cost."""
    last = episode.replies[-1]
    return _row(run_id, pending, started_at) | {
        "state": "completed",
        "exception_kind": None if episode.exception_kind is None else storable(mask(episode.exception_kind)),
        "answer_state": last.answer_state,
        "output_text": storable(last.output_text),
        "turns": len(episode.replies),
        "latency_ms": sum(reply.latency_ms for reply in episode.replies),
        "queue_ms": sum(reply.queue_ms for reply in episode.replies),
        "replica": last.replica,
        "environment_reward": episode.environment_reward,
        "response": to_json(last.response),
        # A harness of the user's may have put anything into it.
        "trajectory": mask(to_json(list(episode.trajectory))),
    }


def failed(run_id: str, pending: Pending, error: RolloutError, started_at: datetime) -> dict[str, Any]:
    """Return the row of a rollout that failed, without what it cost: kind, stage and message, no answer."""
    return _row(run_id, pending, started_at) | {
        "state": "failed",
        "failure_kind": error.kind,
        "failure_stage": error.stage,
        "failure_terminal": error.terminal,
        "error": storable(mask(str(error))),
        "turns": 0,
    }


def cost_of(usages: Iterable[Usage], *, model_calls: int, requests: int) -> dict[str, Any]:
    """Return the columns that tell what a rollout has cost.

    Args:
        usages: Of its model calls.
        model_calls: Calls that were answered.
        requests: HTTP requests, those of failed calls too.
    """
    return {"usage": usage_row(sum_usage(usages)), "model_calls": model_calls, "requests": requests}


def to_batches(rows: deque[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
    """Return rows as batches of the `rollouts` schema, each small enough to be one Parquet part.

    Takes them out of `rows`: of large ones no more than a batch's worth exist twice.
    """
    batch: list[dict[str, Any]] = []
    size = 0
    while rows:
        text = text_size(rows[0])
        if batch and size + text > BATCH_TEXT:
            yield _emptied(batch)
            size = 0
        batch.append(rows.popleft())
        size += text if text <= ROW_TEXT else 0
    if batch:
        yield _emptied(batch)


def _emptied(batch: list[dict[str, Any]]) -> pa.RecordBatch:
    made = to_batch(batch)
    batch.clear()
    return made


def to_batch(rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    """Return rows as one batch of the `rollouts` schema; an absent column is null.

    A row that cannot be stored (a harness of the user's may put anything into it) becomes a failed one of kind
    ``unstorable``: it must not take with it the others of its batch.
    """
    fitting = [_fitting(row) for row in rows]
    try:
        return _arrow(fitting)
    except _REFUSALS:
        return _arrow([_taken(row) for row in fitting])


#: What pyarrow raises for values of a wrong type or size; its own errors are kinds of these, or of `ArrowException`.
_REFUSALS: Final = (
    pa.ArrowException,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


def _arrow(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=ROLLOUTS.schema)


def text_size(row: dict[str, Any]) -> int:
    """Return how many characters of text a row has."""
    return sum(len(value) for value in row.values() if isinstance(value, str))


def _fitting(row: dict[str, Any]) -> dict[str, Any]:
    size = text_size(row)
    return row if size <= ROW_TEXT else _unstorable(row, f"it has {size} characters of text, more than {ROW_TEXT}")


def _taken(row: dict[str, Any]) -> dict[str, Any]:
    try:
        _arrow([row])
    except _REFUSALS as error:
        return _unstorable(row, f"{type(error).__name__}: {error}")
    return row


def _unstorable(row: dict[str, Any], reason: str) -> dict[str, Any]:
    """Return the failed row that stands for one that cannot be stored."""
    refused = {name: row.get(name) for name in _OURS} | {
        "state": "failed",
        "failure_kind": "unstorable",
        "failure_stage": "harness",
        "failure_terminal": True,
        "error": storable(f"the rollout cannot be stored: {reason}"[:1000]),
        "model_calls": 0,
        "turns": 0,
    }
    for name, unknown in _SPENT.items():
        try:
            pa.array([row.get(name)], type=ROLLOUTS.schema.field(name).type)
            refused[name] = unknown if row.get(name) is None else row[name]
        except _REFUSALS:
            refused[name] = unknown
    return refused


def storable(text: str | None) -> str | None:
    """Replace lone surrogates, which neither Arrow nor UTF-8 can hold: one odd answer must not fail its batch."""
    if text is None or text.isascii():  # told at once and without a copy, which matters where a text has megabytes
        return text
    return text.encode("utf-8", "replace").decode("utf-8")


def to_json(value: Any) -> str:
    """Return JSON whose escapes keep even lone surrogates; NaN and infinities, which it has no form for, are null."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        # Read back and written again: that leaves the walk to `json`, and 1e400 is one answer in very many.
        loaded = json.loads(json.dumps(value), parse_constant=lambda _: None)
        return json.dumps(loaded, separators=(",", ":"))


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
