"""What a harness is: it turns a model into an agent for one rollout. No pyspark, no sockets of its own.

In: one task's request and a function that calls the model. Out: what happened, in order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

from gym_spark.config import JsonObject, PartSpec
from gym_spark.endpoint.wire import Reply
from gym_spark.plugins import Registry

ENTRY_POINTS: Final = "gym_spark.harnesses"

#: Sends one request (Responses API parameters) with the run's sampling; raises `RolloutError`.
ModelCall = Callable[[JsonObject], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Episode:
    """What one rollout was: the model's replies in order, and every step that led to them.

    Attributes:
        replies: The model's replies; the last one is the answer.
        trajectory: Every step.
        environment_reward: Reward taken inside the environment, if any.
        exception_kind: Short name of what cut the episode short (``agent_timeout``, ``turn_limit``, ...) where what
            there is by then is an answer all the same. It is judged; what it counts as, the run says
            (`RunSpec.graded_with_exception`).
    """

    replies: tuple[Reply, ...]
    trajectory: tuple[JsonObject, ...]
    environment_reward: float | None = None
    exception_kind: str | None = None


class Harness(Protocol):
    """Keeps the conversation and decides when it is finished."""

    async def run(self, params: JsonObject, call: ModelCall) -> Episode:
        """Play one rollout of the task whose `responses_create_params` are given."""
        ...


#: name -> (module:Class, one line for `list`)
_BUILTIN: Final[dict[str, tuple[str, str]]] = {
    "single_turn": ("gym_spark.harness.single_turn:SingleTurn", "one request, one answer"),
}


_REGISTRY: Final[Registry[Harness]] = Registry(
    "harness",
    ENTRY_POINTS,
    _BUILTIN,
    fits=lambda found: callable(getattr(found, "run", None)),
    wanted="a class with an async method run(params, call)",
)


def harness_names() -> dict[str, str]:
    """Return every known harness with one line about it, sorted by name, without importing any."""
    return _REGISTRY.descriptions()


def told_harness(name: str) -> JsonObject:
    """Return a harness's description, documentation and parameters, as `plugins.Registry.told`.

    Raises:
        ConfigError: unknown name, or a class that cannot be imported or is no harness.
    """
    return _REGISTRY.told(name)


def load_harness(part: PartSpec) -> Harness:
    """Build a harness from its registered name, an entry point, or ``module:Class``.

    Raises:
        ConfigError: unknown name, class that cannot be imported or is no harness, wrong parameter.
    """
    return _REGISTRY.build(part.name, part.params)


def model_step(reply: Reply) -> JsonObject:
    """Describe one model call for the trajectory; the answer itself stands in the `response` it names."""
    return {
        "type": "model_call",
        "response_id": reply.response.get("id"),
        "finish_reason": reply.finish_reason,
        "requests": reply.requests,
        "latency_ms": reply.latency_ms,
        "replica": reply.replica,
    }
