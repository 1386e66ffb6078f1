"""Parquet files that have a table's form already become part of it as they are: linked into its folder and committed.

Spark would read and write every row again, which costs more than calling the model did (docs/performance.md). Delta's
log is what makes a file part of a table, and delta-rs writes it too. Only for lakes that are folders of this machine.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from gym_spark.tables.schemas import Table
from gym_spark.tables.turns import writers_turn


def link_files(root: Path, table: Table, files: Sequence[Path], **partition: str) -> bool:
    """Make files part of a table, as one commit; each stays where it is too, under its old name.

    Args:
        root: Folder of the lake.
        table: The table.
        files: Parquet files with the table's columns, on the same disk; names that no other file of the partition has.
        partition: The values that all their rows have in the columns that the table is partitioned by.

    Returns:
        False if that is not possible here (another disk, a table with features that delta-rs does not write, a full
        disk): then the rows are to be appended. The commit may be done all the same, where only its aftermath failed.
    """
    place = root / table.name
    folder = "/".join(f"{column}={partition[column]}" for column in table.partition_by)
    linked: list[Path] = []
    try:
        delta = DeltaTable(place)
        (place / folder).mkdir(parents=True, exist_ok=True)
        for file in files:
            link = place / folder / file.name
            os.link(file, link)
            linked.append(link)
        added: list[AddAction | RemoveAction] = [_added(f"{folder}/{link.name}", link, partition) for link in linked]
    except (DeltaError, OSError):
        for link in linked:  # and no file that was there before
            with contextlib.suppress(OSError):
                link.unlink()
        return False
    try:
        with writers_turn(root, table.name):
            delta.create_write_transaction(
                added, mode="append", schema=delta.schema(), partition_by=list(table.partition_by)
            )
    except (DeltaError, OSError):
        return False  # the links stay: the commit may have come about, and what failed may have come after it
    return True


def _added(path: str, file: Path, partition: dict[str, str]) -> AddAction:
    found = file.stat()
    stats = json.dumps({"numRecords": pq.read_metadata(file).num_rows})
    return AddAction(path, found.st_size, partition, int(found.st_mtime * 1000), True, stats)
