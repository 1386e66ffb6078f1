"""What a harness is: it turns a model into an agent for one rollout. No pyspark, no sockets of its own.

In: one task's request and a function that calls the model. Out: what happened, in order.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Final, Protocol

from gym_spark.config import JsonObject, PartSpec
from gym_spark.endpoint.wire import Reply
from gym_spark.errors import ConfigError, did_you_mean

ENTRY_POINTS: Final = "gym_spark.harnesses"

#: Sends one request (Responses API parameters) with the run's sampling; raises `RolloutError`.
ModelCall = Callable[[JsonObject], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Episode:
    """What one rollout was: the model's replies in order, and every step that led to them."""

    replies: tuple[Reply, ...]
    trajectory: tuple[JsonObject, ...]
    environment_reward: float | None = None
    stop_reason: str = "answered"


class Harness(Protocol):
    """Keeps the conversation and decides when it is finished."""

    async def run(self, params: JsonObject, call: ModelCall) -> Episode:
        """Play one rollout of the task whose `responses_create_params` are given."""
        ...


#: name -> (module:Class, one line for `list`)
BUILT_IN: Final[dict[str, tuple[str, str]]] = {
    "single_turn": ("gym_spark.harness.single_turn:SingleTurn", "one request, one answer"),
}


def harness_names() -> dict[str, str]:
    """Return every known harness with one line about it."""
    known = {name: line for name, (_, line) in BUILT_IN.items()}
    return known | {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}


def load_harness(part: PartSpec) -> Harness:
    """Build a harness from its registered name, an entry point, or ``module:Class``."""
    installed = {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}
    target = BUILT_IN[part.name][0] if part.name in BUILT_IN else installed.get(part.name, part.name)
    module_name, colon, class_name = target.partition(":")
    if not colon:
        raise ConfigError(f"Unknown harness '{part.name}'" + did_you_mean(part.name, harness_names()))
    try:
        factory: Callable[..., Any] = getattr(importlib.import_module(module_name), class_name)
        harness: Harness = factory(**part.params)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"The harness '{part.name}' cannot be loaded: {error}.") from error
    except TypeError as error:
        raise ConfigError(f"The harness '{part.name}' refuses its parameters: {error}.") from error
    return harness


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
