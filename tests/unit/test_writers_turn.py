"""Writers of one table in a lake that is a folder take turns, across processes."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from pathlib import Path

import pytest

from gym_spark.tables.turns import writers_turn

WRITER = """
import pathlib, sys, time
from gym_spark.tables.turns import writers_turn
with writers_turn(pathlib.Path(sys.argv[1]), "rollouts"):
    print("mine", flush=True)
    time.sleep(100)
"""


def take_turn(folder: Path | None, table: str) -> None:
    with writers_turn(folder, table):
        pass


def test_a_writer_waits_for_one_in_another_process_and_not_for_a_dead_one(tmp_path: Path) -> None:
    """Other tables, and lakes that are no folder, are written meanwhile."""
    lake = tmp_path / "lake"
    other = subprocess.Popen([sys.executable, "-c", WRITER, str(lake)], stdout=subprocess.PIPE, text=True)
    with other, ThreadPoolExecutor(1) as pool:
        assert other.stdout is not None
        assert other.stdout.readline() == "mine\n"
        take_turn(lake, "verifications")
        take_turn(None, "rollouts")
        waiting = pool.submit(take_turn, lake, "rollouts")
        with pytest.raises(NotYet):
            waiting.result(0.5)
        other.kill()
        waiting.result(10)


def test_a_folder_that_cannot_be_made_is_written_without_a_turn(tmp_path: Path) -> None:
    """A Spark Connect server's disk: the path means nothing here."""
    (tmp_path / "file").touch()
    take_turn(tmp_path / "file" / "lake", "rollouts")
