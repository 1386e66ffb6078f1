"""Where a run's staging folder is."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

from gym_spark.config import digest
from gym_spark.errors import ConfigError, StorageError
from gym_spark.rollout.staging import RunStaging
from gym_spark.tables.lake import Lake
from gym_spark.tables.location import check_characters

#: The folder in place of the lake's own.
VARIABLE: Final = "GYM_SPARK_STAGING"


def staging_of(lake: Lake, run_id: str) -> RunStaging:
    """Return the folder of a run's claims and unadopted parts: the named one, or one beside the tables.

    A lake without a folder (a catalog), or with one that only Spark can open, is staged on this machine's disk: where
    workers do not see that either, they stream into Spark instead (`rollout.units`), and only claims are left there.

    Raises:
        ConfigError: the folder that the user named cannot be opened.
    """
    named = os.environ.get(VARIABLE)
    if named:
        check_characters(named, VARIABLE)
        run = RunStaging(f"{named.rstrip('/')}/{run_id}")
        try:
            run.jobs()
        except StorageError as error:
            raise ConfigError(f"{VARIABLE} names a folder that cannot be used. {error}") from error
        return run
    beside = RunStaging(f"{lake.root.rstrip('/')}/_staging/{run_id}")
    if not lake.in_catalog and beside.is_known:
        return beside
    return RunStaging(f"{_own(lake)}/{run_id}")


def _own(lake: Lake) -> str:
    return str(Path(tempfile.gettempdir(), f"gym-spark-{os.getuid()}-staging", digest(lake.root)))
