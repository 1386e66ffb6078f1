"""Which verifications `eval reverify` made of a run: the newest note on each in `reverifications`."""

from __future__ import annotations

import json
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gym_spark.config import JsonObject
from gym_spark.tables.lake import Lake
from gym_spark.tables.schemas import REVERIFICATIONS


@dataclass(frozen=True, slots=True)
class Noted:
    """A verification of a run that `reverify` made or added to.

    Attributes:
        verification_id: Its name.
        verifier: Name of the verifier.
        params: Its parameters.
        recorded_at: When it was last worked on, ISO 8601.
        unsafe: Some of its verdicts were forced and may mean nothing.
    """

    verification_id: str
    verifier: str
    params: JsonObject
    recorded_at: str
    unsafe: bool


def noted_of(lake: Lake, run_id: str) -> dict[str, Noted]:
    """Return what `reverify` made of a run, the oldest first; the run's own verification only if it was added to.

    A name belongs to the verifier that was noted first: the note of a job that came second and gave way says nothing.
    """
    if not lake.exists(REVERIFICATIONS):
        return {}
    rows = lake.read(REVERIFICATIONS, run_id=run_id)
    rows = rows.join(_owners(rows), on=["verification_id", "verifier_digest"], how="left_semi")
    newest = (F.max_by("verifier", "recorded_at").alias("verifier"), F.max("recorded_at").alias("recorded_at"))
    found = rows.groupBy("verification_id").agg(*newest, F.max("unsafe").alias("unsafe")).orderBy("recorded_at")
    noted = {}
    for row in found.collect():
        part = json.loads(row["verifier"])
        name, at = row["verification_id"], row["recorded_at"].isoformat()
        noted[name] = Noted(name, part["name"], part["params"], at, row["unsafe"])
    return noted


def owner_of(lake: Lake, run_id: str, verification_id: str) -> str | None:
    """Return the digest of the verifier that a verification of a run belongs to; None if none was noted."""
    if not lake.exists(REVERIFICATIONS):
        return None
    row = _owners(lake.read(REVERIFICATIONS, run_id=run_id, verification_id=verification_id)).first()
    return None if row is None else str(row["verifier_digest"])


def _owners(notes: DataFrame) -> DataFrame:
    """Return `verification_id` and `verifier_digest` of the first note on each; two of one instant go by digest."""
    first = F.min_by("verifier_digest", F.struct("recorded_at", "verifier_digest")).alias("verifier_digest")
    return notes.groupBy("verification_id").agg(first)
