"""`--lake`: what it names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gym_spark.errors import ConfigError
from gym_spark.tables.location import check_writable, location_of


@pytest.mark.parametrize(
    ("lake", "root", "kind"),
    [
        ("/data/lake", "/data/lake", "folder"),
        ("file:///data/lake", "/data/lake", "folder"),
        ("file:/data/lake", "/data/lake", "folder"),
        ("file://localhost/data/lake", "/data/lake", "folder"),
        ("s3a://bucket/lake/", "s3a://bucket/lake", "uri"),
        ("dbfs:/Volumes/main/lake", "dbfs:/Volumes/main/lake", "uri"),
        ("main.evals", "main.evals", "catalog"),
    ],
)
def test_a_folder_is_a_folder_however_it_is_spelled(lake: str, root: str, kind: str) -> None:
    """A folder has locks and links (pages 6 and 8 of docs/decisions), which a URI has not."""
    found = location_of(lake)
    assert (found.root, found.kind, found.folder) == (root, kind, Path(root) if kind == "folder" else None)


@pytest.mark.parametrize("lake", ["", "s3://a/b?region=x", "/data/*"])
def test_what_spark_cannot_open_is_refused(lake: str) -> None:
    with pytest.raises(ConfigError, match="--lake"):
        location_of(lake)


def test_a_folder_that_cannot_be_made_is_refused_before_spark_starts(tmp_path: Path) -> None:
    """Below a file there is no folder; below a folder that can be written there is."""
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(ConfigError, match=r"notes\.txt' is a file; choose another folder"):
        check_writable(location_of(f"{tmp_path}/notes.txt/lake"))
    check_writable(location_of(f"{tmp_path}/new/lake"))
    check_writable(location_of("s3a://bucket/lake"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_refused_before_spark_starts(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(ConfigError, match="read-only"):
        check_writable(location_of(f"{tmp_path}/lake"))
