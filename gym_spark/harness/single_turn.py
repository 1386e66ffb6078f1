"""`single_turn`: one request, one answer."""

from __future__ import annotations

from gym_spark.config import JsonObject
from gym_spark.harness.base import Episode, ModelCall, model_step


class SingleTurn:
    """Sends the task's request once and takes the reply as the answer."""

    async def run(self, params: JsonObject, call: ModelCall) -> Episode:
        """Play one rollout."""
        reply = await call(params)
        return Episode(replies=(reply,), trajectory=(model_step(reply),))
