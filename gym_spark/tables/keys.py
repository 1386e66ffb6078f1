"""Column names that join the tables, and the ids derived from content. Runs on workers; never imports pyspark."""

from __future__ import annotations

import hashlib
from typing import Final

#: One planned rollout of a run.
ROLLOUT_KEY: Final = ("task_id", "rollout_index")
#: One row of `rollouts` within a run, and what a verification judges.
ATTEMPT_KEY: Final = (*ROLLOUT_KEY, "attempt")


def rollout_seed(base: int, task_id: str, rollout_index: int) -> int:
    """Return the sampling seed of one rollout: equal on every run, different for every repeat; below 2**31."""
    text = f"{base}\0{task_id}\0{rollout_index}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:4], "big") >> 1
