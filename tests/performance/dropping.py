"""A staging folder that keeps no rollouts. Runs on workers; no pyspark."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from gym_spark.rollout.staging import RunStaging, Staging


@dataclass(frozen=True, slots=True)
class DroppingStaging(Staging):
    """Keeps statuses, beats and orders; parts are dropped before they become Parquet."""

    def put_part(self, partition: int, name: str, batch: pa.RecordBatch) -> None:
        """Write nothing."""

    def missing(self, names: Iterable[str]) -> set[str]:
        """Miss none of what was dropped."""
        return set()


@dataclass(frozen=True, slots=True)
class DroppingRun(RunStaging):
    """A run whose jobs keep no rollouts."""

    def job(self, job_id: str) -> Staging:
        """Return one job's folder."""
        return DroppingStaging(f"{self.uri}/{job_id}")
