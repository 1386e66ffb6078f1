"""The lake: the one place that creates, reads and writes Delta tables, by folder, URI or ``catalog.schema``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException, PythonException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType
from tenacity import (
    Retrying,
    retry_if_exception,
    retry_if_exception_type,
    stop_after_attempt,
    wait_fixed,
    wait_random_exponential,
)

from gym_spark.errors import ConfigError, StorageError
from gym_spark.tables.location import location_of
from gym_spark.tables.schemas import Table
from gym_spark.tables.turns import writers_turn

#: What a failing Spark call raises: pyspark gives its own type only to those of the JVM's errors that it knows.
SPARK_ERRORS: Final = (PySparkException, Py4JError)

#: Writers of one table meet seldom and briefly; a writer that loses so often in a row has another problem.
_CONFLICT_TRIES: Final = 8
#: As the system says it, in Java and in Python; Spark wraps it into errors that speak of tasks and stages.
_DISK_FULL: Final = "No space left on device"
#: Between two looks at a table that another writer is creating.
_CREATE_WAIT_S: Final = 0.5

#: So many files are no burden for a reader; rewriting fewer costs more than it saves.
MANY_FILES: Final = 16
#: OPTIMIZE takes files below the one size and makes them into files of the other, in bytes.
_COMPACTION: Final = {
    "spark.databricks.delta.optimize.minFileSize": str(16 << 20),
    "spark.databricks.delta.optimize.maxFileSize": str(128 << 20),
}


def spark_schema(table: Table) -> StructType:
    """Return the Spark form of a table's Arrow schema."""
    return from_arrow_schema(table.schema)


class Lake:
    """Where all tables live.

    Args:
        spark: The session that reads and writes.
        root: A folder, a URI that both Spark and pyarrow can open, or ``catalog.schema``.
    """

    def __init__(self, spark: SparkSession, root: str) -> None:
        self.spark = spark
        self.location = location_of(root)
        self.in_catalog, self.root = self.location.in_catalog, self.location.root

    def name(self, table: Table) -> str:
        """Return the table's name for SQL."""
        return f"{self.root}.{table.name}" if self.in_catalog else f"delta.`{self.root}/{table.name}`"

    def exists(self, table: Table) -> bool:
        """Tell whether the table is there."""
        if self.in_catalog:
            return self._is_in_catalog(table)
        if self.location.folder is not None:
            # A first commit, not only its folder: a kill in the middle of a creation leaves that behind.
            return any((self.location.folder / table.name / "_delta_log").glob("*.json"))
        try:
            return bool(self.spark.read.format("delta").load(f"{self.root}/{table.name}").columns)
        except AnalysisException:
            return False

    def _is_in_catalog(self, table: Table) -> bool:
        try:
            return self.spark.catalog.tableExists(self.name(table))
        except SPARK_ERRORS as error:
            raise ConfigError(
                f"--lake '{self.root}' is read as catalog.schema, and this Spark session has no such catalog "
                f"({first_line(error)}); for a folder of that name write ./{self.root}."
            ) from error

    def ensure(self, *tables: Table) -> None:
        """Create missing tables and columns. Done before any parallel writer starts: first writers conflict.

        Raises:
            ConfigError: something else is in a table's place (Delta takes whatever is there for an existing table), or
                a table of another version that lacks what every row must have.
        """
        for table in tables:
            if not self.exists(table):
                self._create_once(table)
                if not self.exists(table):
                    place = f"{self.root}/{table.name}"
                    raise ConfigError(f"'{place}' is there but is no Delta table; move it, or name another --lake.")
            else:
                self._add_columns(table)

    def _add_columns(self, table: Table) -> None:
        """Give a table that an earlier version made the columns that have come since; old rows have none of them."""
        stored = set(self.read(table).columns)
        fields = [field for field in spark_schema(table).fields if field.name not in stored]
        if needed := [field.name for field in fields if not field.nullable]:
            raise ConfigError(
                f"The table '{table.name}' of the lake '{self.root}' was made by another version of gym-spark and "
                f"lacks {', '.join(needed)}; name another --lake."
            )
        if fields:
            added = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in fields)
            self._run(table, f"ALTER TABLE {self.name(table)} ADD COLUMNS ({added})")

    def _create_once(self, table: Table) -> None:
        """Create the table, unless another writer is just doing so: then its creation is waited for."""
        for attempt in Retrying(
            retry=retry_if_exception_type(StorageError),
            stop=stop_after_attempt(_CONFLICT_TRIES),
            wait=wait_fixed(_CREATE_WAIT_S),
            reraise=True,
        ):
            with attempt:
                if not self.exists(table):
                    self._create(table)

    def _create(self, table: Table) -> None:
        columns = []
        for field, arrow in zip(spark_schema(table).fields, table.schema, strict=True):
            comment = arrow.metadata[b"comment"].decode().replace("'", "''")
            null = "" if field.nullable else " NOT NULL"
            columns.append(f"`{field.name}` {field.dataType.simpleString()}{null} COMMENT '{comment}'")
        partitions = f" PARTITIONED BY ({', '.join(table.partition_by)})" if table.partition_by else ""
        self._run(
            table,
            f"CREATE TABLE IF NOT EXISTS {self.name(table)} ({', '.join(columns)}) USING DELTA{partitions} "
            f"TBLPROPERTIES ('delta.dataSkippingNumIndexedCols' = '{_indexed_columns(table)}')",
        )

    def _run(self, table: Table, statement: str) -> None:
        try:
            with writers_turn(self.location.folder, table.name):
                self.spark.sql(statement)
        except SPARK_ERRORS as error:
            raise StorageError(f"The lake '{self.root}' refused: {first_line(error)}") from error

    def read(self, table: Table, **equals: str) -> DataFrame:
        """Return the table's rows, of the partitions or values given; of its newest version, at each action anew.

        Raises:
            ConfigError: the table is not there.
        """
        return self._load(table, self.spark.read, equals)

    def is_empty(self, table: Table, **equals: str) -> bool:
        """Tell whether the table has no row in the partitions given, by its log alone."""
        return not self.read(table, **equals).inputFiles()

    def read_as_of_now(self, table: Table, **equals: str) -> DataFrame:
        """Return the table's rows as `read` does, and the same ones whatever is written later."""
        newest = self.spark.sql(f"DESCRIBE HISTORY {self.name(table)} LIMIT 1").first()
        if newest is None:
            raise AssertionError("Delta keeps the newest commit of every table")
        return self._load(table, self.spark.read.option("versionAsOf", newest["version"]), equals)

    def _load(self, table: Table, reader: DataFrameReader, equals: Mapping[str, str]) -> DataFrame:
        if not self.exists(table):
            raise ConfigError(
                f"The lake '{self.root}' has no table '{table.name}'; check --lake, or run the stage that writes it."
            )
        if self.in_catalog:
            frame = reader.table(self.name(table))
        else:
            frame = reader.format("delta").load(f"{self.root}/{table.name}")
        for column, value in equals.items():
            frame = frame.where(F.col(column) == value)
        return frame

    def append(self, table: Table, frame: DataFrame) -> None:
        """Add rows as one commit. `frame` has the table's columns, in any order.

        A commit that loses against another writer is tried again: `frame` must be made of stored rows.
        """
        self._write(table, frame, {})

    def append_once(self, table: Table, frame: DataFrame) -> None:
        """Add rows as one commit, in one try: for a frame that calls a model whenever it is evaluated.

        That takes long, so that no turn is waited for or taken.
        """
        self._write(table, frame, {}, tries=1)

    def replace(self, table: Table, frame: DataFrame, **equals: str) -> None:
        """Replace the rows in which the given columns have the given values, as one atomic commit."""
        self._write(table, frame, {"replaceWhere": _condition(equals)})

    def _write(
        self, table: Table, frame: DataFrame, options: Mapping[str, str], *, tries: int = _CONFLICT_TRIES
    ) -> None:
        mode = "overwrite" if options else "append"
        writer = frame.select(*table.columns).write.format("delta").mode(mode).options(**options)
        folder = self.location.folder if tries > 1 else None
        try:
            for attempt in Retrying(
                retry=retry_if_exception(_is_conflict),
                stop=stop_after_attempt(tries),
                wait=wait_random_exponential(max=5.0),
                reraise=True,
            ):
                with attempt, writers_turn(folder, table.name):
                    if self.in_catalog:
                        writer.saveAsTable(self.name(table))
                    else:
                        writer.save(f"{self.root}/{table.name}")
        except SPARK_ERRORS as error:
            raise StorageError(
                f"Writing '{table.name}' in the lake '{self.root}' failed: {first_line(error)}"
            ) from error

    def compact(self, table: Table, *, above: int = MANY_FILES, **equals: str) -> None:
        """Make one or few files of many small ones, where there are many. Rows stay as they are; readers go on.

        The old files stay until the table is vacuumed. If another writer comes in between, all is left as it was.

        Args:
            table: The table.
            above: Files that are left as they are.
            equals: Partition columns and their values: which partitions.
        """
        if len(self.read(table, **equals).inputFiles()) <= above:
            return
        try:
            with _settings(self.spark, _COMPACTION), writers_turn(self.location.folder, table.name):
                self.spark.sql(f"OPTIMIZE {self.name(table)} WHERE {_condition(equals)}")
        except SPARK_ERRORS as error:
            if not _is_conflict(error):
                raise StorageError(f"Compacting '{table.name}' in '{self.root}' failed: {first_line(error)}") from error

    def append_rows(self, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add a few rows that the driver made."""
        self.append(table, self.frame(table, rows))

    def frame(self, table: Table, rows: Sequence[Mapping[str, Any]]) -> DataFrame:
        """Return a few rows that the driver made as a frame with the table's columns."""
        return self.spark.createDataFrame(pa.Table.from_pylist(list(rows), schema=table.schema))


def _condition(equals: Mapping[str, str]) -> str:
    """Spell the condition that columns have certain values, for SQL."""
    return " AND ".join(f"`{column}` = '{value.replace(chr(39), chr(39) * 2)}'" for column, value in equals.items())


@contextlib.contextmanager
def _settings(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Set settings of the session for a while; where a platform refuses them, its own stand."""
    before = {name: spark.conf.get(name, None) for name in values}
    try:
        with contextlib.suppress(*SPARK_ERRORS):
            for name, value in values.items():
                spark.conf.set(name, value)
        yield
    finally:
        with contextlib.suppress(*SPARK_ERRORS):
            for name, old in before.items():
                if old is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, old)


def _is_conflict(error: BaseException) -> bool:
    """Tell whether another writer was faster: Delta's conflicts carry this in their class."""
    return isinstance(error, SPARK_ERRORS) and "DELTA_CONCURRENT" in str(error)


def _indexed_columns(table: Table) -> int:
    """Count the leaf columns before the large ones, as Delta counts them: without partition columns, structs flat."""
    small = [field for field in table.schema if field.name not in table.partition_by][: -table.large or None]
    return sum(field.type.num_fields if pa.types.is_struct(field.type) else 1 for field in small)


def first_line(error: BaseException) -> str:
    """Return the one line of an error that says what it was: Spark adds plans, Java frames and tracebacks."""
    java = getattr(error, "java_exception", None)
    if any(_DISK_FULL in text for text in _java_messages(error)):
        return _DISK_FULL
    text = str(error) if java is None else str(java.getMessage())
    lines = text.strip().splitlines() or [type(error).__name__]
    # The error of a Python worker comes with its traceback, which ends with what it was.
    return lines[-1] if isinstance(error, PythonException) else lines[0]


def _java_messages(error: BaseException) -> Iterator[str]:
    """Yield what Java says of an error and of its causes, the outermost first."""
    cause = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while cause is not None:
        yield str(cause.getMessage())
        cause = cause.getCause()
