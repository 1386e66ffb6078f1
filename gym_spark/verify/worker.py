"""One partition of the verify stage: Arrow batches of rollouts in, Arrow batches of `verifications` out.

Columns in (`columns_in`): task_id, rollout_index, attempt, state, failure_kind, answer_state, output_text,
environment_reward, verifier_inputs (JSON), and response (JSON) for a verifier that reads it. Columns out: exactly
`tables.schemas.VERIFICATIONS`, one row per row in, in order. A row that cannot be judged is a row with a reason, never
an exception and never reward 0.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from gym_spark.config import EndpointSpec, JsonObject
from gym_spark.tables.schemas import VERIFICATIONS
from gym_spark.verify.base import Judgeable, Verdict, Verifier, judge_one, load_verifier, verifier_digest, warm_up
from gym_spark.verify.isolated import IsolatedPool
from gym_spark.verify.judging import JudgeVerifier, judged_by_calls
from gym_spark.verify.sandbox.choice import OFF

COLUMNS_IN: Final = (
    "task_id",
    "rollout_index",
    "attempt",
    "state",
    "failure_kind",
    "answer_state",
    "output_text",
    "response",
    "environment_reward",
    "verifier_inputs",
    "responses_create_params",
)

#: Bounds of one batch out: rows, and characters of its two unbounded columns.
BATCH_ROWS: Final = 500
BATCH_CHARS: Final = 4_000_000

Row = dict[str, Any]


def columns_in(verifier: Verifier) -> list[str]:
    """Return the columns that a verifier's rows have: the large ones only where they are read."""
    unread = {"response": not verifier.needs_response, "responses_create_params": not verifier.needs_prompt}
    return [name for name in COLUMNS_IN if not unread.get(name, False)]


def judge_batches(
    batches: Iterator[pa.RecordBatch],
    *,
    run_id: str,
    verification_id: str,
    verifier_name: str,
    params: Mapping[str, Any],
    limit_s: float,
    sandbox: str = OFF,
    judge: EndpointSpec | None = None,
    workers: int = 1,
) -> Iterator[pa.RecordBatch]:
    """Judge every rollout of the batches with one verifier.

    Args:
        batches: Rollouts joined with their tasks' verifier inputs (`columns_in`); streamed, a few rows are read ahead.
        run_id: Goes into every row.
        verification_id: Goes into every row.
        verifier_name: Registered name or ``module:Class``.
        params: The verifier's parameters.
        limit_s: Wall seconds per rollout, for a verifier that runs isolated.
        sandbox: Where a verifier may run code that a model wrote (`sandbox.choice.choose`).
        judge: Endpoint of the model that a verifier asks, if it asks one.
        workers: How many workers share the judge's limits.

    Raises:
        ConfigError: The verifier cannot be built, or wants a sandbox that is off or does not hold here.
    """
    verifier = load_verifier(verifier_name, params)
    if not verifier.isolated:
        warm_up(verifier_name, verifier, sandbox)
    constant = {
        "run_id": run_id,
        "verification_id": verification_id,
        "verifier": verifier_name,
        "verifier_digest": verifier_digest(verifier_name, params, judge),
    }
    rows = _rows(batches, verifier)
    with IsolatedPool(verifier_name, params, limit_s=limit_s, sandbox=sandbox) as pool:
        judged = _judged(rows, verifier, pool, judge, workers)
        yield from _out(constant | outcome for outcome in judged)


def _rows(batches: Iterable[pa.RecordBatch], verifier: Verifier) -> Iterator[Row]:
    """Yield the rows one by one, so that no more than one row's texts are Python objects at a time."""
    names = columns_in(verifier)
    for batch in batches:
        columns = [batch.column(name) for name in names]
        for index in range(batch.num_rows):
            yield {name: column[index].as_py() for name, column in zip(names, columns, strict=True)}


def _judged(
    rows: Iterable[Row], verifier: Verifier, pool: IsolatedPool, judge: EndpointSpec | None, workers: int
) -> Iterator[Row]:
    """Yield what the verifier says about each row, in order."""
    keys: deque[Row] = deque()  # of the few rows that the pool has read ahead

    def items() -> Iterator[Judgeable | Verdict]:
        for row in rows:
            keys.append({name: row[name] for name in ("task_id", "rollout_index", "attempt")})
            yield _judgeable(row)

    if isinstance(verifier, JudgeVerifier):
        verdicts = judged_by_calls(items(), verifier, judge, workers=workers)
    else:
        verdicts = pool.judge(items()) if verifier.isolated else _judge_here(items(), verifier)
    for verdict in verdicts:
        yield keys.popleft() | {
            "state": verdict.state,
            "reward": verdict.reward,
            "extracted_answer": verdict.extracted_answer,
            "scores": list(verdict.scores.items()),
            "verified_at": datetime.now(UTC),
            "detail": json.dumps(verdict.detail) if verdict.detail else None,
        }


def _judge_here(items: Iterable[Judgeable | Verdict], verifier: Verifier) -> Iterator[Verdict]:
    for item in items:
        yield item if isinstance(item, Verdict) else judge_one(verifier, item)


def _judgeable(row: Row) -> Judgeable | Verdict:
    """Return what the verifier may see of a row, or the verdict on a row that it need not see."""
    if row["state"] != "completed":
        return Verdict.unscored("not_scored", f"rollout failed: {row['failure_kind']}")
    try:
        return Judgeable(
            task_id=row["task_id"],
            rollout_index=row["rollout_index"],
            verifier_inputs=_object(row, "verifier_inputs") or {},
            output_text=row["output_text"],
            answer_state=row["answer_state"],
            response=_object(row, "response"),
            environment_reward=row["environment_reward"],
            request=_object(row, "responses_create_params"),
        )
    except ValueError as error:
        return Verdict.unscored("verifier_error", str(error))


def _object(row: Row, column: str) -> JsonObject | None:
    text = row.get(column)
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the row's {column} is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise ValueError(f"the row's {column} is a JSON {type(value).__name__}, not an object")
    return value


def _out(outcomes: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    """Gather rows into batches of bounded size."""
    held: list[Row] = []
    chars = 0
    for outcome in outcomes:
        held.append(outcome)
        chars += len(outcome["extracted_answer"] or "") + len(outcome["detail"] or "")
        if len(held) >= BATCH_ROWS or chars >= BATCH_CHARS:
            yield pa.RecordBatch.from_pylist(held, schema=VERIFICATIONS.schema)
            held, chars = [], 0
    if held:
        yield pa.RecordBatch.from_pylist(held, schema=VERIFICATIONS.schema)
