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
    root = named or (_own(lake) if lake.in_catalog else f"{lake.root}/_staging")
    run = RunStaging(f"{root.rstrip('/')}/{run_id}")
    try:
        run.jobs()
    except StorageError as error:
        if named:
            raise ConfigError(f"{VARIABLE} names a folder that cannot be used. {error}") from error
        return RunStaging(f"{_own(lake)}/{run_id}")
    return run


def _own(lake: Lake) -> str:
    return str(Path(tempfile.gettempdir(), f"gym-spark-{os.getuid()}-staging", digest(lake.root)))
