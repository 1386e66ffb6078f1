"""From a specification to an endpoint that answers: the user's, or the small local model served for the while."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator

from gym_spark.config import EndpointSpec, RunSpec, SamplingSpec
from gym_spark.endpoint.budget import Budget
from gym_spark.endpoint.client import key_from_environment
from gym_spark.endpoint.model_file import model_file
from gym_spark.endpoint.preflight import check_endpoint
from gym_spark.endpoint.serving import local_model_server, local_server_version
from gym_spark.errors import ConfigError
from gym_spark.harness.base import load_harness
from gym_spark.verify.base import check_judge, check_sandbox, load_verifier

Say = Callable[[str], None]
Connect = Callable[[], EndpointSpec]


def check_parts(spec: RunSpec) -> RunSpec:
    """Return the specification with the model named, after checking all that can be wrong without asking anyone.

    Raises:
        ConfigError: the harness, verifier or their parameters are wrong, no model is named, or code that the model
            writes would run without a sandbox.
    """
    load_harness(spec.harness)
    Budget(spec.endpoint)
    verifier = load_verifier(spec.verifier.name, spec.verifier.params)
    check_sandbox(spec.verifier.name, verifier, spec.sandbox)
    check_judge(spec.verifier.name, verifier, spec.judge)
    endpoint = spec.endpoint
    if endpoint.urls and endpoint.model is None:
        raise ConfigError(f"Name the model that {endpoint.urls[0]} serves with --model.")
    if not endpoint.urls:
        local_server_version()
        served = model_file().name
        if endpoint.model not in (None, served):
            raise ConfigError(
                f"The embedded endpoint serves '{served}', not '{endpoint.model}'; "
                "leave --model out, or give the address of yours with --model-url."
            )
        endpoint = endpoint.model_copy(update={"model": served})
    return spec.model_copy(update={"endpoint": endpoint})


def preflight_judge(judge: EndpointSpec, say: Say) -> None:
    """Send the judge one tiny request: a wrong key or model name ends the command before anything is paid for.

    Raises:
        ConfigError: it is down, or refuses the key or the model.
    """
    try:
        warning = check_endpoint(judge, SamplingSpec(), key_from_environment(judge))
    except ConfigError as error:
        raise ConfigError(f"The judge: {error}") from error
    if warning:
        say(f"Warning: the judge: {warning}.")


@contextlib.contextmanager
def open_endpoint(spec: RunSpec, *, preflight: bool = True, say: Say = print) -> Iterator[EndpointSpec]:
    """Make sure that the run's endpoint answers; without an address, serve the small local model for the while.

    Raises:
        ConfigError: the endpoint is down, or refuses the key or the model.
    """
    with contextlib.ExitStack() as stack:
        endpoint = spec.endpoint
        if not endpoint.urls:
            server = stack.enter_context(local_model_server())
            endpoint = endpoint.model_copy(update={"urls": (server.url,)})
            say(f"Serving {server.model} on this machine with {server.server_version}.")
        if preflight and spec.judge is not None:
            preflight_judge(spec.judge, say)
        if preflight:
            warning = check_endpoint(endpoint, spec.sampling, key_from_environment(endpoint))
            if warning:
                say(f"Warning: {warning}.")
        yield endpoint


@contextlib.contextmanager
def connected(spec: RunSpec, *, resume: bool, preflight: bool, say: Say) -> Iterator[tuple[RunSpec, Connect]]:
    """Check the specification, and give a function that opens its endpoint once and returns it.

    A new run opens it here, before any Spark stage; one that is resumed when it turns out that something is left to do.
    """
    spec = check_parts(spec)
    with contextlib.ExitStack() as stack:

        @functools.cache
        def connect() -> EndpointSpec:
            return stack.enter_context(open_endpoint(spec, preflight=preflight, say=say))

        if not resume:
            connect()
        yield spec, connect
