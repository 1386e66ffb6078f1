"""A benchmark's ``prepare.py``: loaded and run, it turns a `Source` into `Row` values; its faults become one sentence.

The script defines ``def rows(source: Source) -> Iterator[Row]``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from typing import TYPE_CHECKING

from gym_spark.config import JsonObject, digest
from gym_spark.errors import ConfigError, RolloutError, boundary
from gym_spark.prepare.catalog import SCRIPT_FILE, Benchmark
from gym_spark.prepare.sources import Source

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


@dataclass(frozen=True, slots=True)
class Row:
    """One problem, as a prepare script yields it. Every mapping holds JSON values."""

    #: The source row as it was read; ids are digested from it, so it must hold what makes the problem this problem.
    raw: JsonObject
    #: What the verifier needs.
    verifier_inputs: JsonObject
    #: Values for the prompt's ``{field}`` places.
    fields: JsonObject = field(default_factory=dict)
    #: What neither prompt nor verifier needs, kept beside the task.
    metadata: JsonObject = field(default_factory=dict)
    #: The source's own id, unique in the benchmark.
    task_id: str | None = None
    #: A complete request body baked into the row (`input` and what else the task fixes), instead of a prompt.
    responses_create_params: JsonObject | None = None
    #: The answer to show when the row serves as a few-shot example.
    shot_answer: str | None = None
    #: What the script changed in the row, and why, where it mends a known fault of the source.
    patch: str | None = None


class _Loader(SourceFileLoader):
    """Leaves no bytecode behind: benchmark folders are read only, and are packed into wheels."""

    def set_data(self, path: str, data: ReadableBuffer, *, _mode: int = 0o666) -> None:
        """Write nothing."""


def read_rows(benchmark: Benchmark, source: Source) -> Iterator[Row]:
    """Run the benchmark's script.

    Raises:
        ConfigError: a package is missing, the script cannot be loaded, or it failed; the message names the row.
    """
    rows = _rows_function(benchmark)
    name, number = benchmark.spec.name, 1
    with _naming(f"Benchmark '{name}' failed at row {number}"):
        iterator = iter(rows(source))
    while True:
        with _naming(f"Benchmark '{name}' failed at row {number}"):
            row = next(iterator, None)
        if row is None:
            return
        if not isinstance(row, Row):
            raise ConfigError(f"Benchmark '{name}' yielded a {type(row).__name__} for row {number}; yield Row values.")
        yield row
        number += 1


def _rows_function(benchmark: Benchmark) -> Callable[[Source], Iterable[Row]]:
    _check_packages(benchmark)
    path = benchmark.folder / SCRIPT_FILE
    # Dataclasses look their module up by name, so the script needs one in sys.modules, apart from other scripts.
    module_name = f"gym_spark_prepare_{digest(str(path.resolve()))}"
    loader = _Loader(module_name, str(path))
    spec = spec_from_loader(module_name, loader)
    assert spec is not None  # only a loader without is_package() gives None
    module = module_from_spec(spec)
    sys.modules[module_name] = module
    with _naming(f"'{path}' cannot be loaded"):
        loader.exec_module(module)
    function = getattr(module, "rows", None)
    if not callable(function):
        raise ConfigError(f"'{path}' does not define rows(source); add it.")
    return function  # type: ignore[no-any-return]  # what it yields is checked row by row


def _check_packages(benchmark: Benchmark) -> None:
    missing = [package for package in benchmark.spec.requires if not _installed(package)]
    if missing:
        raise ConfigError(
            f"Benchmark '{benchmark.spec.name}' needs what is not installed; run: pip install {' '.join(missing)}"
        )


def _installed(package: str) -> bool:
    try:
        metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return False
    return True


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Make one sentence of whatever the script raises; the traceback stays chained to it."""
    try:
        with boundary("prepare"):
            yield
    except RolloutError as error:
        raise ConfigError(f"{what} ({' '.join(str(error).split())}); nothing was stored.") from error
