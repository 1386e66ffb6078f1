"""Which verifications `eval reverify` made of a run: the newest note on each in `reverifications`."""

from __future__ import annotations

import json
from dataclasses import dataclass

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
    """Return what `reverify` made of a run, the oldest first; the run's own verification only if it was added to."""
    if not lake.exists(REVERIFICATIONS):
        return {}
    rows = lake.read(REVERIFICATIONS, run_id=run_id).groupBy("verification_id")
    newest = (F.max_by("verifier", "recorded_at").alias("verifier"), F.max("recorded_at").alias("recorded_at"))
    found = rows.agg(*newest, F.max("unsafe").alias("unsafe")).orderBy("recorded_at").collect()
    noted = {}
    for row in found:
        part = json.loads(row["verifier"])
        name, at = row["verification_id"], row["recorded_at"].isoformat()
        noted[name] = Noted(name, part["name"], part["params"], at, row["unsafe"])
    return noted
