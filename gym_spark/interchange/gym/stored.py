"""NeMo Gym's rows in the form of the lake's tables. Pure: rows enter, rows leave."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import orjson

from gym_spark.config import JsonObject
from gym_spark.endpoint.failures import EndpointFailure
from gym_spark.endpoint.replies import reply_from
from gym_spark.endpoint.usage import usage_row
from gym_spark.errors import ConfigError
from gym_spark.interchange.gym.rows import REPEAT, TASK, GymRow, Index, Key, index_order
from gym_spark.results.partition_rows import PERF

#: Name of the verification that an import makes, and of its verifier: whoever gave the rewards.
IMPORTED: Final = "imported"
VERIFIER: Final = "nemo_gym"
#: Repeat numbers that the tables can hold.
_REPEATS: Final = range(2**31)
_NO_SCORES: Final = ("reward", "mask_sample")
FAILURE_CLASS: Final = "_ng_failure_class"
#: Failures of a judge: it gave no verdict, or one that cannot be read.
_JUDGE_CLASSES: Final = ("judge_failed", "judge_invalid")


@dataclass(frozen=True, slots=True)
class TaskIds:
    """How the tasks of an imported run are named in the lake.

    Attributes:
        index: `task_index` of each task: its number, or the place of a textual id after all others.
    """

    index: Mapping[Index, int]

    @classmethod
    def of(cls, tasks: Iterable[Index]) -> TaskIds:
        """Name the tasks of a run."""
        ordered = sorted(set(tasks), key=index_order)
        numbers = [task for task in ordered if isinstance(task, int)]
        first = max(numbers, default=-1) + 1
        texts = [task for task in ordered if isinstance(task, str)]
        return cls({**{n: n for n in numbers}, **{text: first + place for place, text in enumerate(texts)}})

    def row(self, key: Key) -> JsonObject:
        """Return the columns `task_id`, `task_index` and `rollout_index` of a key.

        Raises:
            ConfigError: the repeat is no number from 0, or the task's is too large.
        """
        task, repeat = key
        if not isinstance(repeat, int) or repeat not in _REPEATS:
            raise ConfigError(f"The repeat {repeat!r} of task {task!r} is no number from 0 to {_REPEATS[-1]}.")
        if self.index[task] >= 2**63 or self.index[task] < -(2**63):
            raise ConfigError(
                f"The number of task {task!r} is beyond 64 bits, as the tables have them; name it by a text."
            )
        return {"task_id": task_id(task), "task_index": self.index[task], "rollout_index": repeat}


def task_id(task: Index) -> str:
    """Return the id of a task as a text; a textual one that reads like a number is quoted, for both may be there."""
    if isinstance(task, int):
        return str(task)
    return f'"{task}"' if task.lstrip("-").isdigit() or task.startswith('"') else task


def rollout_row(run_id: str, ids: JsonObject, row: JsonObject, at: datetime) -> JsonObject:
    """Return the row of `rollouts` for a result row.

    Args:
        run_id: The run.
        ids: Of `TaskIds.row`, and `attempt`.
        row: The result row.
        at: The time of the import: when the rollout was made is not known.
    """
    response = row.get("response") or {}
    stored = _answered(response)
    return (
        _sent_elsewhere(run_id, ids, at)
        | {"state": "completed"}
        | stored
        | {"measures": list(measures_of(row).items())}
        | {"response": _json(response) if response else None}
        | {"trajectory": _json(row["ng_trajectory"]) if row.get("ng_trajectory") is not None else None}
    )


def failure_row(run_id: str, ids: JsonObject, row: JsonObject, at: datetime) -> JsonObject:
    """Return the row of `rollouts` for a row of the failure sidecar.

    Args:
        run_id: The run.
        ids: Of `TaskIds.row`, and `attempt`.
        row: The sidecar row.
        at: The time of the import.
    """
    return _sent_elsewhere(run_id, ids, at) | {
        "state": "failed",
        "failure_kind": str(row.get(FAILURE_CLASS) or "unknown"),
        "failure_stage": "environment",
        "failure_terminal": bool(row.get("_ng_failure_terminal")),
        "error": _reason(row),
    }


def is_unjudged(row: JsonObject) -> bool:
    """Tell whether a row of the failure sidecar has an answer that only its judge failed on."""
    return row.get(FAILURE_CLASS) in _JUDGE_CLASSES and isinstance(row.get("response"), dict) and bool(row["response"])


def _reason(row: JsonObject) -> str:
    reason = row.get("error") or row.get("failure_reason") or row.get(FAILURE_CLASS) or "unknown"
    return reason if isinstance(reason, str) else _json(reason)


def _sent_elsewhere(run_id: str, ids: JsonObject, at: datetime) -> JsonObject:
    # Of calls and requests we count what we send ourselves: nothing.
    return {"run_id": run_id, "shard": 0, **ids, "model_calls": 0, "requests": 0, "turns": 0} | {
        "started_at": at,
        "completed_at": at,
    }


def _answered(response: JsonObject) -> JsonObject:
    """Return text, state and usage of an answer; of one in a shape that we do not know, the usage that it tells."""
    try:
        answer = reply_from(response, "responses")
    except EndpointFailure as failure:
        return {"usage": usage_row(failure.usage)}
    return {
        "output_text": answer.output_text,
        "answer_state": answer.answer_state,
        "usage": usage_row(answer.usage),
    }


def measures_of(row: JsonObject) -> dict[str, float]:
    """Return the numbers of a result row's usage, and of what was observed of it (`ng_perf`)."""
    usage = (row.get("response") or {}).get("usage") or {}
    measures = {name: float(value) for name, value in usage.items() if _counts(name, value)}
    if isinstance(perf := row.get(PERF), dict):
        measures[PERF] = 1.0
        measures |= {f"{PERF}.{name}": float(value) for name, value in perf.items() if isinstance(value, int | float)}
    return measures


def verdict_row(run_id: str, ids: JsonObject, row: JsonObject, read: GymRow, at: datetime) -> JsonObject:
    """Return the row of `verifications` for a result row.

    Args:
        run_id: The run.
        ids: Of `TaskIds.row`, and `attempt`.
        row: The result row.
        read: What the metrics need of it (`rows.result_row`).
        at: The time of the import.
    """
    reward = float(read.reward) if isinstance(read.reward, int | float) else None
    state = "masked" if read.masked else "scored" if reward is not None else "not_scored"
    answer = row.get("extracted_answer")
    return _given_elsewhere(run_id, ids, at) | {
        "state": state,
        "reward": None if read.masked else reward,
        "scores": list(scores_of(row, read).items()),
        "extracted_answer": answer if answer is None or isinstance(answer, str) else _json(answer),
        "detail": _json(_told(row)),
    }


def unjudged_row(run_id: str, ids: JsonObject, row: JsonObject, at: datetime) -> JsonObject:
    """Return the row of `verifications` for a row of the failure sidecar whose judge failed: the reason, no reward.

    Args:
        run_id: The run.
        ids: Of `TaskIds.row`, and `attempt`.
        row: The sidecar row.
        at: The time of the import.
    """
    told = {"reason": _reason(row)} | _told(row)
    return _given_elsewhere(run_id, ids, at) | {"state": "judge_failed", "detail": _json(told)}


def _given_elsewhere(run_id: str, ids: JsonObject, at: datetime) -> JsonObject:
    return {
        "run_id": run_id,
        "verification_id": IMPORTED,
        **{name: value for name, value in ids.items() if name != "task_index"},
        "verifier": VERIFIER,
        "verifier_digest": IMPORTED,
        "verified_at": at,
    }


def _told(row: JsonObject) -> JsonObject:
    return {name: value for name, value in row.items() if name not in ("response", "ng_trajectory", TASK, REPEAT)}


def scores_of(row: JsonObject, read: GymRow) -> dict[str, float | None]:
    """Return the numbers of a result row itself; under `reward` the reward as it stood, where that was no number."""
    scores: dict[str, float | None] = {
        name: float(value) for name, value in row.items() if _counts(name, value) and name not in _NO_SCORES
    }
    if read.has_reward and (isinstance(read.reward, bool) or not isinstance(read.reward, int | float)):
        scores["reward"] = float(read.reward) if isinstance(read.reward, bool) else None
    return scores


def input_row_of(
    run_id: str, ids: JsonObject, row: JsonObject, run: tuple[str | None, str | None, str | None]
) -> JsonObject:
    """Return the row of `inputs` for an input row.

    Args:
        run_id: The run.
        ids: Of `TaskIds.row`.
        row: The input row.
        run: Its agent, run key and label.
    """
    agent, run_key, label = run
    plain = {name: value for name, value in row.items() if name not in (TASK, REPEAT)}
    return {"run_id": run_id, **ids, "agent": agent, "run_key": run_key, "label": label, "input": _json(plain)}


def _counts(name: str, value: Any) -> bool:
    return isinstance(value, int | float) and not name.startswith("_")


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def task_rows(benchmark: str, version: str, inputs: Iterable[tuple[JsonObject, JsonObject]]) -> Iterator[JsonObject]:
    """Yield the rows of `tasks`: one per task, made from its first input row.

    Args:
        benchmark: Name that stands for the run's tasks.
        version: Digest of the inputs.
        inputs: (columns of `TaskIds.row`, input row) in key order.
    """
    told: set[str] = set()
    for ids, row in inputs:
        if ids["task_id"] not in told:
            told.add(ids["task_id"])
            kept = {name: value for name, value in row.items() if not name.startswith("_ng_") and name != "agent_ref"}
            request = kept.pop("responses_create_params", None) or {}
            yield {
                "benchmark": benchmark,
                "version": version,
                "task_id": ids["task_id"],
                "task_index": ids["task_index"],
                "shard": 0,
                "fingerprint": "",
                "responses_create_params": _json(request),
                "verifier_inputs": _json(kept),
                "metadata": "{}",
            }
