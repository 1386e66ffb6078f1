"""Users' harnesses, named ``module:Class``: Spark's Python workers import them."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

from pyspark import TaskContext

from gym_spark.config import JsonObject
from gym_spark.endpoint.failures import EndpointFailure
from gym_spark.harness.base import Episode, ModelCall
from gym_spark.harness.single_turn import SingleTurn

#: Model calls that are answered before the engine breaks.
CALLS = 3


class BrokenEngine(BaseException):
    """What no row can be blamed for."""


class BreaksOnce(SingleTurn):
    """Breaks the first try of its Spark task after some answers, none of which became a rollout."""

    def __init__(self) -> None:
        self.answered = 0

    async def run(self, params: JsonObject, call: ModelCall) -> Episode:
        """Play one rollout; in a Spark task's first try, never to its end."""
        episode = await SingleTurn.run(self, params, call)
        self.answered += 1
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0:
            if self.answered == CALLS:
                raise BrokenEngine
            await asyncio.Event().wait()
        return episode


class AsksTwice(SingleTurn):
    """Asks a second time, and tells of the second answer only; or fails then, or gives its own wait up."""

    def __init__(self, ends: str = "well") -> None:
        self.ends = ends

    async def run(self, params: JsonObject, call: ModelCall) -> Episode:
        """Play one rollout."""
        with contextlib.suppress(EndpointFailure):
            await call(params)
        if self.ends == "never":
            await asyncio.Event().wait()
        if self.ends == "failed":
            raise ValueError("no second turn")
        if self.ends == "cancelled":
            raise asyncio.CancelledError
        return await SingleTurn.run(self, params, call)


class RunsOutOfTime(SingleTurn):
    """An agent that answers, works on, and is stopped by its own clock: what it has said by then stands."""

    async def run(self, params: JsonObject, call: ModelCall) -> Episode:
        """Play one rollout."""
        episode = await SingleTurn.run(self, params, call)
        try:
            async with asyncio.timeout(0.1):
                await asyncio.Event().wait()
        except TimeoutError:
            episode = replace(episode, exception_kind="agent_timeout")
        return episode
