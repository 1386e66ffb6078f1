"""The only builder of Spark sessions. An existing one (notebook, spark-submit, Connect) is used as it is."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from gym_spark.errors import ConfigError

DELTA_PACKAGE: Final = "io.delta:delta-spark_4.1_2.13:4.4.0"
#: The jars of DELTA_PACKAGE that Spark's own distribution lacks.
_DELTA_JARS: Final = ("io.delta_delta-spark_4.1_2.13-4.4.0.jar", "io.delta_delta-storage-4.4.0.jar")
#: Where Spark 4.1 keeps what its Ivy resolved.
_IVY: Final = Path.home() / ".ivy2.5.2"

_JDK_REMEDY: Final = "install JDK 17 or 21 (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME to one."

#: Tries of one Spark task. Each goes on from what the one before has staged, so that many cost little.
_TRIES: Final = 8

#: What makes Delta fast on one machine: SPIKES.md measured each.
_LOCAL: Final = {
    "spark.driver.memory": "4g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
    "spark.sql.execution.arrow.maxBytesPerBatch": "16m",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.session.timeZone": "UTC",
    # One task that calls a model must not run twice at once (DESIGN.md §7).
    "spark.speculation": "false",
    "spark.task.maxFailures": str(_TRIES),
    # Else Parquet's writer first looks at its memory after a hundred rows, which may be of 8 MB each.
    "spark.hadoop.parquet.page.size.row.check.min": "10",
    "spark.hadoop.parquet.block.size.row.check.min": "10",
    # Transcripts are all different: looking for repeats among them is a third of the work of storing them.
    **{f"spark.hadoop.parquet.enable.dictionary#{name}": "false" for name in ("output_text", "response", "trajectory")},
    "spark.log.level": "ERROR",
    # Not below the working folder: nothing is stored there, but Spark makes it.
    "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir(), f"gym-spark-{os.getuid()}-warehouse")),
}
#: Where every part of Spark runs on this machine, none of it listens to the network.
_LOOPBACK: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_DELTA: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def get_session(
    settings: Mapping[str, str] | None = None, *, say: Callable[[str], None] = lambda text: None
) -> SparkSession:
    """Return the running session, or build one.

    Args:
        settings: Spark settings for a session that is built here, on top of the local defaults; `spark.master` and
            `spark.remote` choose where. They do not change a session that already exists.
        say: Told that Spark starts, which takes seconds.

    Raises:
        ConfigError: no usable Java, Spark does not start, or the running session has no Delta.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    wanted = dict(settings or {})
    remote = wanted.pop("spark.remote", os.environ.get("SPARK_REMOTE", ""))
    if _submitted() or remote.startswith("sc://"):
        builder = SparkSession.builder.remote(remote) if remote else SparkSession.builder
        return _with_delta(builder.getOrCreate())
    _check_java()
    say("Starting Spark.")
    master = wanted.pop("spark.master", None)
    here = (remote or master or "local").startswith("local")
    conf = {**_LOCAL, **(_LOOPBACK if here else {}), **_DELTA, **_jars(here=here), **wanted}
    builder = SparkSession.builder.appName("gym-spark")
    builder = builder.remote(remote) if remote else builder.master(master or _local_master())
    for key, value in conf.items():
        builder = builder.config(key, value)
    with _interrupts_afterwards(), _quiet_start(here=here):
        return _with_delta(builder.getOrCreate())


def speculates(spark: SparkSession) -> bool:
    """Tell whether Spark may run a slow task twice at once, as far as the session tells."""
    with contextlib.suppress(PySparkException, Py4JError):
        return spark.conf.get("spark.speculation", "false") == "true"
    return False


def _submitted() -> bool:
    """Tell whether spark-submit (or a platform that works like it) has started the JVM for us."""
    return "PYSPARK_GATEWAY_PORT" in os.environ or "DATABRICKS_RUNTIME_VERSION" in os.environ


def _local_master() -> str:
    # Two slots more than cores: collection tasks wait for the network, and the driver's adoption of finished
    # rollouts needs a slot while they hold theirs.
    # Local Spark would give up at the first Python worker that dies, whatever spark.task.maxFailures says.
    return f"local[{(os.cpu_count() or 2) + 2},{_TRIES}]"


def _jars(*, here: bool) -> dict[str, str]:
    """Put Delta on the class path: from Ivy's cache where it is there, else let Ivy resolve it once.

    Executors on other machines have no such cache: for them Ivy resolves, and Spark sends the jars.
    """
    paths = [_IVY / "jars" / name for name in _DELTA_JARS]
    if here and all(path.is_file() for path in paths):
        joined = ":".join(map(str, paths))
        return {"spark.driver.extraClassPath": joined, "spark.executor.extraClassPath": joined}
    # Java's idea of the home folder is not always that of $HOME.
    return {"spark.jars.packages": DELTA_PACKAGE, "spark.jars.ivy": str(_IVY)}


@contextlib.contextmanager
def _interrupts_afterwards() -> Iterator[None]:
    """Let Ctrl-C take effect once Spark is up, and then as a plain `KeyboardInterrupt`.

    Interrupted in the middle of its start, Spark leaves a JVM behind that waits for nobody. And pyspark's own handler
    calls into the JVM from wherever the interrupt struck, which fails inside another such call; what an interrupted
    job needs is cancelled where it was started (`rollout.collect`).
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    struck: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: struck.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if struck:
        raise KeyboardInterrupt


@contextlib.contextmanager
def _quiet_start(*, here: bool) -> Iterator[None]:
    """Let the JVM write its start-up chatter and its log to a file in place of the user's terminal.

    The JVM inherits the file as its standard output and error for as long as it lives; this process gets its own back.
    What goes wrong later reaches the user as an exception, not through the JVM's log.

    Raises:
        ConfigError: Spark did not start.
    """
    if here:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    log = Path(tempfile.gettempdir(), f"gym-spark-{os.getuid()}-spark.log")
    kept = {stream: os.dup(stream) for stream in (1, 2)}
    with log.open("ab") as file, warnings.catch_warnings():
        # Spark Connect warns of each setting that only the start of its server could take, and did.
        warnings.simplefilter("ignore")
        began = file.tell()
        for stream in kept:
            os.dup2(file.fileno(), stream)
        try:
            yield
        except (PySparkException, Py4JError) as error:
            raise ConfigError(_start_failure(log, began)) from error
        finally:
            for stream, own in kept.items():
                os.dup2(own, stream)
                os.close(own)


def _start_failure(log: Path, began: int) -> str:
    """Say in one sentence why Spark did not start, by what it wrote to its log from byte `began` on."""
    written = log.read_bytes()[began:].decode(errors="replace")
    if "unresolved dependency" in written or "UNRESOLVED DEPENDENCIES" in written:
        return (
            f"Delta's jars ({DELTA_PACKAGE}) could not be fetched from Maven Central and are not in {_IVY / 'jars'}; "
            "connect this machine once, or name a mirror in the file that spark.jars.ivySettings points to."
        )
    return f"Spark did not start; the reason is near the end of '{log}'."


def _check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        raise ConfigError(
            f"Spark needs Java and none was found{f' below JAVA_HOME={home}' if home else ''}; {_JDK_REMEDY}"
        )
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', told)
    if version is None or int(version.group(1)) < 17:
        seen = told.splitlines()[0] if told else "silent"
        raise ConfigError(f"Spark 4.1 needs Java 17 or 21, and '{java}' is {seen}; {_JDK_REMEDY}")


def _with_delta(spark: SparkSession) -> SparkSession:
    if (
        "io.delta" not in (spark.conf.get("spark.sql.extensions", "") or "")
        and "DATABRICKS_RUNTIME_VERSION" not in os.environ
    ):
        raise ConfigError(
            f"The running Spark session has no Delta; start it with --packages {DELTA_PACKAGE} and the settings of "
            "conf/spark/local.conf."
        )
    return spark
