"""A session that cannot start says why in one sentence; each case needs a JVM of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

#: An Ivy that knows one empty folder: what a machine without a network has.
OFFLINE = """
<ivysettings>
  <settings defaultResolver="empty"/>
  <caches defaultCacheDir="{folder}/cache"/>
  <resolvers><filesystem name="empty"><artifact pattern="{folder}/[artifact].[ext]"/></filesystem></resolvers>
</ivysettings>
"""

START = """
import json, sys
from gym_spark.errors import ConfigError
from gym_spark.session import get_session
try:
    get_session(json.loads(sys.argv[1]))
except ConfigError as error:
    print(error)
"""


def start(settings: str) -> str:
    """Try to start a session in a process of its own, and return what it says."""
    command = [sys.executable, "-c", START, settings]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_jars_that_cannot_be_fetched_are_one_sentence(tmp_path: Path) -> None:
    """What Ivy itself says goes to the log, whichever of its two outputs it takes."""
    (tmp_path / "ivy.xml").write_text(OFFLINE.format(folder=tmp_path))
    said = start(f'{{"spark.jars.packages": "no.such:jar:1", "spark.jars.ivySettings": "{tmp_path}/ivy.xml"}}')
    assert "Delta's jars" in said
    assert "could not be fetched" in said
    assert len(said.splitlines()) == 1


def test_a_spark_that_does_not_start_names_its_log() -> None:
    """Spark wants the heap's size as `spark.driver.memory` and refuses this form."""
    said = start('{"spark.driver.extraJavaOptions": "-Xmx1g"}')
    assert "Spark did not start; the reason is near the end of '" in said
    assert len(said.splitlines()) == 1
