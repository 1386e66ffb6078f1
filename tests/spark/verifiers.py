"""A user's verifier, named ``module:Class``: Spark's Python workers import it."""

from __future__ import annotations

from typing import Final

from gym_spark.verify.base import Judgeable, Verdict, Verifier

#: The task on which it raises.
POISON: Final = "poison"


class Fragile(Verifier):
    """Rewards every answer by its length, and raises on one task."""

    name = "fragile"

    def verify(self, item: Judgeable) -> Verdict:
        """Judge, or fall over."""
        if item.task_id == POISON:
            raise KeyError("no such field")
        return Verdict.scored(float(len(item.output_text or "")), scores={"length": 1.0})


class Everything(Verifier):
    """Rewards every answer with `reward`."""

    name = "everything"

    def __init__(self, *, reward: float = 1.0) -> None:
        self._reward = reward

    def verify(self, item: Judgeable) -> Verdict:
        """Give the reward."""
        return Verdict.scored(self._reward)


class InSession(Everything):
    """Says that it needs the session in which the rollout was played."""

    name = "in_session"
    mode = "live_session"
