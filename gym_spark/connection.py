"""From a specification to endpoints that answer: the user's, or the small local model served for the while."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from gym_spark.config import EndpointSpec, PartSpec, RunSpec, SamplingSpec
from gym_spark.endpoint.budget import Budget
from gym_spark.endpoint.client import key_from_environment
from gym_spark.endpoint.model_file import model_file
from gym_spark.endpoint.preflight import Settings, check_endpoint
from gym_spark.endpoint.serving import local_model_server, local_server_version
from gym_spark.errors import ConfigError
from gym_spark.harness.base import load_harness
from gym_spark.verify.base import Verifier, check_judge, check_sandbox, load_verifier
from gym_spark.verify.judging import JudgeVerifier

Say = Callable[[str], None]
Connect = Callable[[], EndpointSpec]
#: Of a run whose verifier asks no model it returns None.
ConnectJudge = Callable[[], EndpointSpec | None]

_OF_MODEL: Final = Settings()
_OF_JUDGE: Final = Settings(
    key="--judge-api-key-env",
    model="--judge-model",
    url="--judge-url",
    api="judge.api",
    sampling="verifier.params.sampling",
)


def check_parts(spec: RunSpec) -> RunSpec:
    """Return the specification with its models named, after checking all that can be wrong without asking anyone.

    A judge that the verifier does not ask is left out: it decides nothing, and so is no part of the run's identity.

    Raises:
        ConfigError: the harness, verifier or their parameters are wrong, no model is named, or code that the model
            writes would run without a sandbox.
    """
    verifier = check_settings(spec)
    endpoint = _with_model(spec.endpoint, _OF_MODEL)
    judge = named_judge(spec.verifier.name, verifier, spec.judge)
    return spec.model_copy(update={"endpoint": endpoint, "judge": judge})


def check_settings(spec: RunSpec) -> Verifier:
    """Refuse what `check_parts` refuses, but without looking for the small local model, which may have to be fetched.

    Returns:
        The verifier.

    Raises:
        ConfigError: as `check_parts`.
    """
    load_harness(spec.harness)
    Budget(spec.endpoint)
    verifier = load_verifier(spec.verifier.name, spec.verifier.params)
    check_sandbox(spec.verifier.name, verifier, spec.sandbox)
    _check_named(spec.endpoint, _OF_MODEL)
    check_judge(spec.verifier.name, verifier, spec.judge)
    if spec.judge is not None and verifier.needs_judge:
        _check_named(spec.judge, _OF_JUDGE)
    return verifier


def named_judge(name: str, verifier: Verifier, judge: EndpointSpec | None) -> EndpointSpec | None:
    """Return the judge's endpoint with its model named; None where the verifier asks no model.

    Raises:
        ConfigError: it asks one, and there is no judge, or none that can be used.
    """
    check_judge(name, verifier, judge)
    if judge is None or not verifier.needs_judge:
        return None
    return _with_model(judge, _OF_JUDGE)


def _check_named(endpoint: EndpointSpec, settings: Settings) -> None:
    if endpoint.urls and endpoint.model is None:
        raise ConfigError(f"Name the model that {endpoint.urls[0]} serves with {settings.model}.")


def _with_model(endpoint: EndpointSpec, settings: Settings) -> EndpointSpec:
    _check_named(endpoint, settings)
    if endpoint.urls:
        return endpoint
    local_server_version()
    served = model_file().name
    if endpoint.model not in (None, served):
        raise ConfigError(
            f"The embedded endpoint serves '{served}', not '{endpoint.model}'; "
            f"leave {settings.model} out, or give the address of yours with {settings.url}."
        )
    return endpoint.model_copy(update={"model": served})


@dataclass(slots=True)
class _Opened:
    """What has been opened until the stack closes: one local server at most, one tiny request for each model."""

    stack: contextlib.ExitStack
    preflight: bool
    say: Say
    local_url: str | None = None
    asked: list[EndpointSpec] = field(default_factory=list)

    def open(self, endpoint: EndpointSpec, sampling: SamplingSpec, settings: Settings) -> EndpointSpec:
        """Return the endpoint with its addresses, once it answers.

        Args:
            endpoint: The endpoint, its model named.
            sampling: Goes into the tiny request.
            settings: What the user calls the endpoint's settings.

        Raises:
            ConfigError: it is down, or refuses the key, the model or the sampling.
        """
        if not endpoint.urls:
            endpoint = endpoint.model_copy(update={"urls": (self._local(),)})
        # Only what the request tells apart: a judge and a policy may have limits of their own on one server.
        one = EndpointSpec(**endpoint.model_dump(include={"urls", "model", "api", "api_key_env"}))
        if self.preflight and one not in self.asked:
            warning = check_endpoint(endpoint, sampling, key_from_environment(endpoint), settings)
            self.asked.append(one)
            if warning:
                self.say(f"Warning: {warning} (model '{endpoint.model}').")
        return endpoint

    def _local(self) -> str:
        if self.local_url is None:
            server = self.stack.enter_context(local_model_server())
            self.say(f"Serving {server.model} on this machine with {server.server_version}.")
            self.local_url = server.url
        return self.local_url


@contextlib.contextmanager
def connected(
    spec: RunSpec, *, resume: bool, preflight: bool, say: Say, judging: bool = True
) -> Iterator[tuple[RunSpec, Connect, ConnectJudge]]:
    """Check the specification, and give functions that open its endpoint and its judge's once and return them.

    A new run opens them here, before any Spark stage; one that is resumed when it turns out that something is left to
    do.

    Args:
        spec: The run.
        resume: It may exist.
        preflight: Send one tiny request for each model.
        say: Told of a local server and of warnings.
        judging: The judge will be asked, if the run has one.

    Raises:
        ConfigError: something is wrong with the specification or an endpoint.
    """
    spec = check_parts(spec)
    sampling = judge_sampling(load_verifier(spec.verifier.name, spec.verifier.params))
    with contextlib.ExitStack() as stack:
        opened = _Opened(stack, preflight, say)

        def connect() -> EndpointSpec:
            return opened.open(spec.endpoint, spec.sampling, _OF_MODEL)

        def connect_judge() -> EndpointSpec | None:
            return None if spec.judge is None else opened.open(spec.judge, sampling, _OF_JUDGE)

        if not resume:
            connect()
            if judging:
                connect_judge()
        yield spec, connect, connect_judge


@contextlib.contextmanager
def connected_judge(
    judge: EndpointSpec | None, verifier: PartSpec, *, preflight: bool, say: Say
) -> Iterator[EndpointSpec | None]:
    """Open the judge's endpoint alone, for stored rollouts; None where the verifier asks no model.

    Raises:
        ConfigError: the judge is down, or refuses the key, the model or the sampling; or there is none.
    """
    loaded = load_verifier(verifier.name, verifier.params)
    named = named_judge(verifier.name, loaded, judge)
    with contextlib.ExitStack() as stack:
        opened = _Opened(stack, preflight, say)
        yield None if named is None else opened.open(named, judge_sampling(loaded), _OF_JUDGE)


def judge_sampling(verifier: Verifier) -> SamplingSpec:
    """Return how a verifier has its judge sample."""
    return verifier.sampling if isinstance(verifier, JudgeVerifier) else SamplingSpec()
