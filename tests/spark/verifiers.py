"""A user's verifier, named ``module:Class``: Spark's Python workers import it."""

from __future__ import annotations

import time
from pathlib import Path
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


class Slow(Everything):
    """Takes its time, in a child process."""

    name = "slow"
    isolated = True

    def verify(self, item: Judgeable) -> Verdict:
        """Give the reward, later."""
        time.sleep(0.03)
        return Verdict.scored(self._reward)


class NeverStarts(Everything):
    """Lacks something where it judges."""

    isolated = True

    def warm_up(self) -> None:
        """Fail."""
        raise RuntimeError("no licence")


class Away(Verifier):
    """Asks a judge that is there as long as a file is."""

    name = "away"

    def __init__(self, *, judge: str) -> None:
        self._judge = Path(judge)

    def verify(self, item: Judgeable) -> Verdict:
        """Give full marks, or none at all."""
        return Verdict.scored(1.0) if self._judge.exists() else Verdict.unscored("judge_failed", "nobody is there")


class Toy(Verifier):
    """The verifier of the corpus of `eval reverify`: the text after the last "ANSWER: " is the answer."""

    name = "toy"
    needs_response = True

    def verify(self, item: Judgeable) -> Verdict:
        """Judge, or fail as the task's `toy` says."""
        asked = item.verifier_inputs.get("toy") or {}
        if asked.get("failure_class") == "judge_failed":
            return Verdict.unscored("judge_failed", "judge call failed")
        if asked.get("failure_class") == "timeout_exceeded":
            return Verdict.unscored("verify_timeout", "timeout exceeded")
        if asked.get("no_persist"):
            return Verdict.unscored("verifier_error", "not to be stored")
        output = (item.response or {}).get("output", [])
        texts = [part["text"] for message in output if message["type"] == "message" for part in message["content"]]
        _, found, after = texts[-1].rpartition("ANSWER: ") if texts else ("", "", "")
        answer = after.strip() if found else None
        flags = {}
        if "invalid_judge" in asked:
            flags = {"invalid_judge_response": True, "invalid_judge_retryable": asked["invalid_judge"]}
        scores = {name: float(value) for name, value in flags.items() if value is not None}
        reward = float(answer == item.verifier_inputs["expected_answer"])
        return Verdict.scored(reward, extracted_answer=answer, scores=scores)


class ToyOnSlowMachine(Toy):
    """The same, on a machine that takes too long as long as a file is not there."""

    name = "toy_on_slow_machine"

    def __init__(self, *, done: str) -> None:
        self._done = Path(done)

    def verify(self, item: Judgeable) -> Verdict:
        """Judge, or take too long."""
        return super().verify(item) if self._done.exists() else Verdict.unscored("verify_timeout", "timeout exceeded")


class ToyOfUnknownMode(Toy):
    """The same, from a server that does not say whether it may judge stored rollouts."""

    mode = "unknown"
