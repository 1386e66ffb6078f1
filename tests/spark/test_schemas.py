"""The Spark form of every table is its Arrow form, and Delta keeps no statistics of the large columns."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from gym_spark.tables.lake import Lake, spark_schema
from gym_spark.tables.schemas import ALL, Table


def example(type_: pa.DataType) -> Any:
    """Return a value of an Arrow type."""
    if pa.types.is_struct(type_):
        return {type_.field(index).name: example(type_.field(index).type) for index in range(type_.num_fields)}
    if pa.types.is_map(type_):
        return [("name", 1.0)]
    if pa.types.is_timestamp(type_):
        return datetime(2026, 1, 1, tzinfo=UTC)
    if pa.types.is_boolean(type_):
        return True
    return "text" if pa.types.is_string(type_) else 1


def statistics(lake: Lake, table: Table) -> list[dict[str, Any]]:
    """Read the statistics of every file that was added to a table, from its log."""
    logs = sorted(Path(lake.root, table.name, "_delta_log").glob("*.json"))
    actions = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    return [json.loads(action["add"]["stats"]) for action in actions if "add" in action]


def metadata_of(lake: Lake, table: Table) -> dict[str, Any]:
    """Return the metaData action of a table's first commit."""
    log = Path(lake.root, table.name, "_delta_log", f"{0:020d}.json")
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    found: dict[str, Any] = next(action["metaData"] for action in actions if "metaData" in action)
    return found


def test_a_created_table_has_the_types_null_rules_comments_and_partitions_of_its_arrow_schema(lake: Lake) -> None:
    """What Delta stores of a table says the same, column by column, as the one definition in `schemas`."""
    lake.ensure(*ALL.values())
    for table in ALL.values():
        metadata = metadata_of(lake, table)
        stored = StructType.fromJson(json.loads(metadata["schemaString"]))
        created = [(field.name, field.dataType, field.nullable, field.metadata["comment"]) for field in stored]
        wanted = [
            (field.name, field.dataType, arrow.nullable, arrow.metadata[b"comment"].decode())
            for field, arrow in zip(spark_schema(table), table.schema, strict=True)
        ]
        assert created == wanted, table.name
        assert tuple(metadata["partitionColumns"]) == table.partition_by


def test_rows_survive_the_lake_and_its_statistics_leave_the_large_columns_out(lake: Lake) -> None:
    """A row comes back as it went in; the log describes every small column of it and none of the last, large ones."""
    lake.ensure(*ALL.values())
    for table in ALL.values():
        row = {field.name: example(field.type) for field in table.schema}
        lake.append_rows(table, [row])
        back = lake.read(table).toArrow()
        assert back.schema.names == table.columns
        assert back.cast(table.schema).to_pylist() == [row], table.name

        (stats,) = statistics(lake, table)
        small = [name for name in table.columns[: -table.large or None] if name not in table.partition_by]
        # Booleans and maps have no smallest value.
        ordered = [name for name in small if not _unordered(table.schema.field(name).type)]
        assert sorted(stats["nullCount"]) == sorted(small), table.name
        assert sorted(stats["minValues"]) == sorted(ordered), table.name


def _unordered(type_: pa.DataType) -> bool:
    return bool(pa.types.is_map(type_) or pa.types.is_boolean(type_))
