"""A staging folder that keeps no rollouts. Runs on workers; no pyspark."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from gym_spark.rollout.staging import Staging


@dataclass(frozen=True, slots=True)
class DroppingStaging(Staging):
    """Keeps statuses, beats and orders; parts are dropped before they become Parquet."""

    def put_part(self, partition: int, name: str, batch: pa.RecordBatch) -> None:
        """Write nothing."""
