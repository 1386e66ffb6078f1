"""A few stored rollouts to look at: prompt, answer, verdict."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from gym_spark.tables.keys import ATTEMPT_KEY
from gym_spark.verify.stage import newest


def sampled(rollouts: DataFrame, tasks: DataFrame, verifications: DataFrame, *, count: int) -> DataFrame:
    """Pick rollouts by a hash of their key, so that the same run shows the same ones; of one task no two before all.

    Args:
        rollouts: The run's stored rollouts.
        tasks: The tasks of its dataset version.
        verifications: The verdicts of one verification of the run.
        count: How many.

    Returns:
        One row per pick: `task_id`, `rollout_index`, `responses_create_params`, `output_text`, `answer_state`,
        `error`, `verdict`, `reward`, `extracted_answer`, `reason` (why not scored), `verifier_inputs`.
    """
    key = list(ATTEMPT_KEY)
    order = [F.xxhash64("task_id", "rollout_index"), *map(F.col, key)]
    turn = F.row_number().over(Window.partitionBy("task_id").orderBy(*order))
    picked = rollouts.select(*key).withColumn("turn", turn).orderBy("turn", *order).limit(count).drop("turn")
    reason = F.get_json_object("detail", "$.reason").alias("reason")
    shown = verifications.join(F.broadcast(picked), on=key, how="left_semi")
    verdicts = newest(shown, "state", "reward", "extracted_answer", "detail")
    judged = verdicts.select(*key, F.col("state").alias("verdict"), "reward", "extracted_answer", reason)
    stored = rollouts.select(*key, "output_text", "answer_state", "error")
    return (
        stored.join(F.broadcast(picked), on=key)
        .join(judged, on=key, how="left")
        .join(tasks.select("task_id", "responses_create_params", "verifier_inputs"), on="task_id")
    )


@dataclass(frozen=True, slots=True)
class Sample:
    """One rollout as a person would read it."""

    task_id: str
    rollout_index: int
    prompt: str
    answer: str
    expected: str
    extracted: str | None
    verdict: str
    reward: float | None
    answer_state: str | None
    #: Why it is not scored.
    reason: str | None


def sample_of(row: Mapping[str, Any]) -> Sample:
    """Make one row of :func:`sampled` readable."""
    expected = json.loads(row["verifier_inputs"]).get("expected_answer", "")
    return Sample(
        task_id=row["task_id"],
        rollout_index=row["rollout_index"],
        prompt=_last_message(json.loads(row["responses_create_params"]).get("input", "")),
        answer=_answer(row),
        expected=str(expected),
        extracted=row["extracted_answer"],
        verdict=row["verdict"] or "not judged yet",
        reward=row["reward"],
        answer_state=row["answer_state"],
        reason=row["reason"],
    )


def _answer(row: Mapping[str, Any]) -> str:
    if row["output_text"] is not None:
        return str(row["output_text"])
    return "[no text]" if row["error"] is None else f"[failed: {row['error']}]"


def _last_message(given: Any) -> str:
    """Return the text of a request's `input`: of its last item, if there are several; another shape as JSON."""
    last = (given[-1] if given else "") if isinstance(given, list) else given
    content = last.get("content", last) if isinstance(last, dict) else last
    if isinstance(content, list):
        parts = [part["text"] if isinstance(part, dict) and "text" in part else part for part in content]
        return "\n".join(map(_text, parts))
    return _text(content)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
