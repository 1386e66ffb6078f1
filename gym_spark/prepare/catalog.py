"""The benchmarks that are there: folders ``<name>/{benchmark.yaml,prepare.py}`` come in, checked specs leave.

Light to import, because ``list benchmarks`` answers in a fraction of a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from gym_spark.config import JsonObject, PartSpec, SamplingSpec, Spec, validate
from gym_spark.errors import ConfigError, did_you_mean
from gym_spark.layers import read_yaml
from gym_spark.prepare.prompts import PromptSpec

SPEC_FILE: Final = "benchmark.yaml"
SCRIPT_FILE: Final = "prepare.py"

_PACKAGE: Final = Path(__file__).resolve().parent.parent


class SourceSpec(Spec):
    """Where a benchmark's rows come from."""

    #: ``jsonl``: one object a line, also gzipped. ``file``: anything that `prepare.py` reads itself.
    #: ``generated``: no input, `prepare.py` makes the rows from `params`.
    format: Literal["jsonl", "file", "generated"] = "jsonl"
    #: Address of one exact file; with `revision` in it where the host allows that.
    url: Annotated[str, Field(pattern=r"^https?://")] | None = None
    #: Name of the file, for messages and the cache; by default the last part of the URL.
    file_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] | None = None
    #: Of the whole file as it is downloaded; a download that differs is refused.
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    #: Commit or tag that the file was taken from.
    revision: str | None = None
    #: What to know about the data's licence beyond its name.
    licence_note: str | None = None
    #: Parameters for `prepare.py` (``source.params``), such as a generator's seed.
    params: JsonObject = Field(default_factory=dict)

    @model_validator(mode="after")
    def _generated_has_no_file(self) -> SourceSpec:
        if self.format == "generated" and (self.url or self.file_name or self.sha256):
            raise ValueError("a generated source takes no url, file_name or sha256")
        return self

    def name(self) -> str | None:
        """Return the file's name, if there is a file to name."""
        if self.file_name is not None or self.url is None:
            return self.file_name
        return self.url.partition("?")[0].rstrip("/").rpartition("/")[2]


class BenchmarkSpec(Spec):
    """``benchmark.yaml``: what the benchmark measures, and the defaults of its runs."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$")]
    description: str
    #: Kind of ability, such as math, coding or agent.
    domain: str
    #: SPDX identifier of the data's licence.
    license: str
    split: str | None = None
    tags: tuple[str, ...] = ()
    source: SourceSpec
    #: None: `prepare.py` gives every row its own `responses_create_params`.
    prompt: PromptSpec | None = None
    harness: PartSpec = Field(default_factory=lambda: PartSpec(name="single_turn"))
    environment: str | None = None
    verifier: PartSpec
    num_repeats: Annotated[int, Field(ge=1)] = 1
    sampling: SamplingSpec = Field(default_factory=SamplingSpec)
    #: Names of metrics that are the benchmark's headline: of `metrics.py`, or such as mean_reward and pass@4.
    key_metrics: tuple[str, ...] = ()
    #: Packages that `prepare.py` imports beyond gym-spark, as pip names them.
    requires: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")], ...] = ()


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A checked benchmark and the folder that defines it."""

    spec: BenchmarkSpec
    folder: Path


def search_path(extra: Sequence[Path] = ()) -> list[Path]:
    """Return the folders that hold benchmark folders: the user's first, then the shipped one.

    Raises:
        ConfigError: a given folder does not exist, or is itself a benchmark.
    """
    for folder in extra:
        if not folder.is_dir():
            raise ConfigError(f"--search-dir '{folder}' is not a folder; check the path.")
        if (folder / SPEC_FILE).is_file():
            raise ConfigError(f"--search-dir '{folder}' is itself a benchmark; give the folder that holds it.")
    # A wheel carries the benchmarks inside the package; a checkout has them beside it.
    shipped = [_PACKAGE / "_benchmarks", _PACKAGE.parent / "benchmarks"]
    return [*extra, *[folder for folder in shipped if folder.is_dir()][:1]]


def find_benchmark(name: str, search: Sequence[Path] | None = None) -> Benchmark:
    """Return the first benchmark of that name, among the shipped ones unless `search` names the folders.

    Raises:
        ConfigError: no folder has that name (the message names the closest), or its files are wrong.
    """
    folders = _folders(search)
    if name not in folders:
        raise ConfigError(f"There is no benchmark '{name}'{did_you_mean(name, folders)}")
    return _read(folders[name])


def list_benchmarks(
    search: Sequence[Path] | None = None, *, faulty: list[ConfigError] | None = None
) -> list[Benchmark]:
    """Return every benchmark by name; where two folders share a name, the one that comes first in the search.

    Args:
        search: The folders that hold benchmark folders; by default the shipped one.
        faulty: Collects what is wrong with those that cannot be read, which are then left out.

    Raises:
        ConfigError: a benchmark's files are wrong, and `faulty` is not given.
    """
    folders = _folders(search)
    found = []
    for name in sorted(folders):
        try:
            found.append(_read(folders[name]))
        except ConfigError as error:
            if faulty is None:
                raise
            faulty.append(error)
    return found


def _folders(search: Sequence[Path] | None) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for place in search_path() if search is None else search:
        for file in sorted(place.glob(f"*/{SPEC_FILE}")):
            found.setdefault(file.parent.name, file.parent)
    return found


def _read(folder: Path) -> Benchmark:
    file = folder / SPEC_FILE
    spec = validate(BenchmarkSpec, read_yaml(file), str(file))
    if spec.name != folder.name:
        raise ConfigError(f"{file}: 'name' is '{spec.name}' but the folder is '{folder.name}'; make them equal.")
    if not (folder / SCRIPT_FILE).is_file():
        raise ConfigError(f"Benchmark '{spec.name}' has no {SCRIPT_FILE} beside '{file}'; add one that defines rows().")
    return Benchmark(spec, folder)
