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
_ELSEWHERE: Final = "elsewhere.json"


def staging_of(lake: Lake, run_id: str) -> RunStaging:
    """Return the folder of a run's claims and unadopted parts: the named one, or one beside the tables.

    A lake without a folder (a catalog), or with one that only Spark can open, is staged on this machine's disk: where
    workers do not see that either, they stream into Spark instead (`rollout.units`), and only claims are left there.

    Raises:
        ConfigError: the folder that the user named cannot be opened, or is not the one that the run was staged in.
    """
    named, beside = os.environ.get(VARIABLE), _beside(lake, run_id)
    noted = beside.get_json(_ELSEWHERE) if beside is not None else None
    if noted not in (None, named):
        raise ConfigError(
            f"Rollouts of '{run_id}' were staged in '{noted}': set {VARIABLE} to that folder, so that what is left "
            f"there is not paid for twice; if nothing is, remove '{_ELSEWHERE}' from '{lake.root}/_staging/{run_id}'."
        )
    if named:
        check_characters(named, VARIABLE)
        run = RunStaging(f"{named.rstrip('/')}/{run_id}")
        try:
            run.jobs()
        except StorageError as error:
            raise ConfigError(f"{VARIABLE} names a folder that cannot be used. {error}") from error
        return run
    return beside or RunStaging(f"{_own(lake)}/{run_id}")


def note_place(lake: Lake, run_id: str) -> None:
    """Leave a note in the lake of a folder that only a variable names: the next process may not have it set."""
    named, beside = os.environ.get(VARIABLE), _beside(lake, run_id)
    if named and beside is not None:
        beside.put_json(_ELSEWHERE, named)


def forget_place(lake: Lake, run_id: str) -> None:
    """Remove the note where nothing of the run is staged any more."""
    if os.environ.get(VARIABLE) and not staging_of(lake, run_id).jobs() and (beside := _beside(lake, run_id)):
        beside.remove()


def _beside(lake: Lake, run_id: str) -> RunStaging | None:
    """Return the folder beside the tables, if the lake has one that Python can open."""
    beside = RunStaging(f"{lake.root.rstrip('/')}/_staging/{run_id}")
    return beside if not lake.in_catalog and beside.is_known else None


def _own(lake: Lake) -> str:
    return str(Path(tempfile.gettempdir(), f"gym-spark-{os.getuid()}-staging", digest(lake.root)))
