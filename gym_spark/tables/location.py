"""Where a lake is: ``--lake`` as the user wrote it, checked before anything is started. No pyspark."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gym_spark.errors import ConfigError

_CATALOG_SCHEMA: Final = re.compile(r"^[A-Za-z_]\w*\.[A-Za-z_]\w*$")
#: Spark reads the first ones as patterns, and cannot quote the others in a path.
_UNUSABLE: Final = re.compile(r"[\[\]{}*?#%`\\\n\0]")


@dataclass(frozen=True, slots=True)
class Location:
    """The root of a lake.

    Attributes:
        root: An absolute folder, a URI, or ``catalog.schema``.
        kind: Which of them.
    """

    root: str
    kind: str

    @property
    def in_catalog(self) -> bool:
        """True for ``catalog.schema``."""
        return self.kind == "catalog"

    @property
    def folder(self) -> Path | None:
        """The folder, if it is one on this machine."""
        return Path(self.root) if self.kind == "folder" else None


def location_of(lake: str) -> Location:
    """Read ``--lake``.

    Raises:
        ConfigError: it is empty, holds characters that Spark cannot use in a path, or is a file.
    """
    if not lake.strip():
        raise ConfigError("--lake (or GYM_SPARK_LAKE) is empty; give a folder, a URI, or catalog.schema.")
    check_characters(lake, "--lake")
    lake = _without_scheme(lake)
    if "://" in lake or lake.startswith("dbfs:/"):
        return Location(lake.rstrip("/"), "uri")
    path = Path(lake).expanduser().absolute()
    if _CATALOG_SCHEMA.match(lake) and not path.exists():
        return Location(lake, "catalog")
    if path.exists() and not path.is_dir():
        raise ConfigError(f"--lake '{lake}' is a file; choose a folder.")
    return Location(str(path), "folder")


def check_writable(location: Location) -> None:
    """Refuse a folder that nothing can be stored in, before anything is started; a URI or catalog cannot be asked.

    Raises:
        ConfigError: it, or the folder that it would be made in, is read-only or a file.
    """
    if location.folder is None:
        return
    nearest = next(place for place in (location.folder, *location.folder.parents) if place.exists())
    if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
        why = "is read-only for this user" if nearest.is_dir() else "is a file"
        raise ConfigError(f"--lake '{location.root}' cannot be written, for '{nearest}' {why}; choose another folder.")


def check_characters(place: str, what: str) -> None:
    """Refuse a folder or URI that Spark would take for a pattern, or cannot name.

    Args:
        place: The folder.
        what: Who names it: a flag or a variable.

    Raises:
        ConfigError: it holds such a character.
    """
    odd = _UNUSABLE.search(place)
    if odd is not None:
        raise ConfigError(
            f"{what} '{place}' holds {odd[0]!r}, which Spark cannot use in a path; choose another folder."
        )


def _without_scheme(lake: str) -> str:
    """Return the path of a ``file:`` URI: a folder is a folder, however it is spelled."""
    return re.sub(r"^file:(//(localhost)?(?=/))?", "", lake) if lake.startswith("file:/") else lake
