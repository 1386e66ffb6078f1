"""What every test layer shares: the folder of a test sets its marker, and no test meets a user's settings."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent

# Spark's Python workers must be this interpreter.
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
for name in ("GYM_SPARK_LAKE", "GYM_SPARK_STAGING", "SPARK_REMOTE"):
    os.environ.pop(name, None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test by its folder: unit, spark or e2e."""
    for item in items:
        layer = item.path.relative_to(ROOT).parts[0]
        item.add_marker(getattr(pytest.mark, layer))
