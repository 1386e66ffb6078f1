"""A benchmark's ``prepare.py``: loaded and run, it turns a `Source` into `Row` values; its faults become one sentence.

The script defines ``def rows(source: Source) -> Iterator[Row]``; a source is read with `Source.records`::

    def rows(source: Source) -> Iterator[Row]:
        for where, record in source.records("question", "answer"):
            yield Row(
                raw=record,
                fields={"question": record["question"]},
                verifier_inputs={"expected_answer": record["answer"]},
            )
"""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from gym_spark.config import JsonObject, digest
from gym_spark.errors import ConfigError
from gym_spark.plugins import users_code
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


_MAPPINGS: Final = ("raw", "verifier_inputs", "fields", "metadata", "responses_create_params")
_TEXTS: Final = ("task_id", "shot_answer", "patch")
_NOTHING_STORED: Final = "; nothing was stored"
#: Stands for the end of the rows, since a script can yield None.
_END: Final = object()


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
    with users_code(f"Benchmark '{name}' failed at row {number}", _NOTHING_STORED):
        iterator: Iterator[object] = iter(rows(source))
    while True:
        with users_code(f"Benchmark '{name}' failed at row {number}", _NOTHING_STORED):
            row = next(iterator, _END)
        if row is _END:
            return
        if not isinstance(row, Row):
            raise ConfigError(f"Benchmark '{name}' yielded a {type(row).__name__} for row {number}; yield Row values.")
        _check_fields(row, f"Benchmark '{name}', row {number}")
        yield row
        number += 1


def _check_fields(row: Row, where: str) -> None:
    for name in _MAPPINGS:
        value: Any = getattr(row, name)
        if value is None and name == "responses_create_params":
            continue
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise ConfigError(f"{where}: '{name}' is {reprlib.repr(value)}; it must be a dict with text keys.")
    for name in _TEXTS:
        value = getattr(row, name)
        if value is not None and not (isinstance(value, str) and _is_utf8(value)):
            raise ConfigError(f"{where}: '{name}' is {reprlib.repr(value)}; it must be text.")


def _is_utf8(text: str) -> bool:
    """Tell whether a text can be stored; half of a surrogate pair cannot."""
    return text.encode("utf-8", "replace").decode() == text


def _rows_function(benchmark: Benchmark) -> Callable[[Source], Iterable[Row]]:
    _check_packages(benchmark)
    return function_of(benchmark.folder / SCRIPT_FILE, "rows", "rows(source)", _NOTHING_STORED)


def function_of(path: Path, name: str, form: str, consequence: str = "") -> Callable[..., Any]:
    """Load a file of a benchmark's folder and return one of its functions.

    Args:
        path: The file.
        name: The function.
        form: How it is called, for the message.
        consequence: Ends the message of a file that cannot be loaded.

    Raises:
        ConfigError: the file cannot be loaded, or defines no such function.
    """
    # Dataclasses look their module up by name, so the script needs one in sys.modules, apart from other scripts.
    module_name = f"gym_spark_{path.stem}_{digest(str(path.resolve()))}"
    loader = _Loader(module_name, str(path))
    spec = spec_from_loader(module_name, loader)
    assert spec is not None  # only a loader without is_package() gives None
    module = module_from_spec(spec)
    sys.modules[module_name] = module
    with users_code(f"'{path}' cannot be loaded", consequence):
        loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(f"'{path}' does not define {form}; add it.")
    return cast("Callable[..., Any]", function)


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
