"""What a run talks to is checked before anything is paid for: policy and judge, each model once."""

from __future__ import annotations

from typing import Any

import pytest

from gym_spark.config import EndpointSpec, PartSpec, RunSpec
from gym_spark.connection import check_parts, connected, connected_judge
from gym_spark.endpoint.model_file import model_file
from gym_spark.errors import ConfigError
from tests.fake_openai import FakeOpenAI, FakeReply

SERVED = model_file().name


def spec(policy: Any, judge: Any, verifier: str = "llm_judge", **params: Any) -> RunSpec:
    endpoint = {} if policy is None else {"urls": [policy], "model": "policy"}
    part = {"name": verifier, "params": params}
    return RunSpec.model_validate(
        {"benchmark": "b", "run_id": "r", "endpoint": endpoint, "judge": judge, "verifier": part}
    )


def opened(run: RunSpec, *, resume: bool = False, judging: bool = True) -> tuple[EndpointSpec, EndpointSpec | None]:
    with connected(run, resume=resume, preflight=True, say=lambda _: None, judging=judging) as (_, policy, judge):
        return policy(), judge()


def test_policy_and_judge_are_asked_one_tiny_request_each_with_their_own_sampling() -> None:
    with FakeOpenAI(models=["policy", "judge"]) as server:
        judge = {"urls": [server.url], "model": "judge", "concurrency": 3}
        run = spec(server.url, judge, sampling={"temperature": 0.25})
        policy, found = opened(run)
        assert [(body["model"], body.get("temperature")) for body in server.bodies] == [
            ("policy", None),
            ("judge", 0.25),
        ]
        assert (policy.model, found and found.concurrency) == ("policy", 3)


def test_a_judge_that_is_the_policy_is_asked_once() -> None:
    with FakeOpenAI() as server:
        opened(spec(server.url, {"urls": [server.url], "model": "policy", "concurrency": 1}))
        assert server.requests == 1


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (FakeReply(status=401), "model 'judge': the key is wrong .*--judge-api-key-env"),
        (FakeReply(status=404), "model 'judge': .*--judge-model and --judge-url"),
        (
            FakeReply(status=400, error={"message": "temperature is not supported"}),
            "model 'judge': .*verifier.params.sampling .*temperature",
        ),
    ],
    ids=["key", "model", "sampling"],
)
def test_a_judge_that_refuses_ends_the_command(reply: FakeReply, said: str) -> None:
    with FakeOpenAI() as policy, FakeOpenAI(lambda body, n: reply) as judge, pytest.raises(ConfigError, match=said):
        opened(spec(policy.url, {"urls": [judge.url], "model": "judge"}))


def test_a_resumed_run_asks_a_judge_only_when_it_is_wanted_and_collection_alone_never() -> None:
    with FakeOpenAI() as policy, FakeOpenAI() as judge:
        run = spec(policy.url, {"urls": [judge.url], "model": "judge"})
        with connected(run, resume=True, preflight=True, say=lambda _: None):
            pass
        with connected(run, resume=False, preflight=True, say=lambda _: None, judging=False):
            pass
        assert (policy.requests, judge.requests) == (1, 0)


def test_the_embedded_model_may_play_and_judge_on_one_server() -> None:
    """Its address is in no specification: it is another one at the next run."""
    said: list[str] = []
    run = spec(None, {})
    with connected(run, resume=False, preflight=True, say=said.append) as (checked, policy, judge):
        found = judge()
        assert found is not None
        assert (policy().urls, policy().model) == (found.urls, found.model)
        assert (checked.endpoint.urls, checked.judge and checked.judge.urls) == ((), ())
        assert (checked.judge and checked.judge.model) == SERVED
    assert len(said) == 1, "one server is started"
    with (
        FakeOpenAI() as server,
        connected_judge(EndpointSpec(), PartSpec(name="llm_judge"), preflight=True, say=said.append) as alone,
    ):
        assert alone is not None
        assert alone.urls
        assert server.requests == 0


def test_what_cannot_judge_is_refused_without_asking_anyone() -> None:
    with pytest.raises(ConfigError, match="--judge-url"):
        check_parts(spec("http://a/v1", None))
    with pytest.raises(ConfigError, match="--judge-model"):
        check_parts(spec("http://a/v1", {"urls": ["http://b/v1"]}))
    with pytest.raises(ConfigError, match=f"serves '{SERVED}', not 'big'.*--judge-model out.*--judge-url"):
        check_parts(spec("http://a/v1", {"model": "big"}))
    with pytest.raises(ConfigError, match="budget"):
        check_parts(spec("http://a/v1", {"urls": ["http://b/v1"], "model": "m", "budget": {"tokens": 5}}))


def test_a_judge_is_part_of_a_runs_identity_only_where_it_is_asked() -> None:
    """A shared configuration may name a judge; a run that asks none is the same run whoever judges."""
    one, other = ({"urls": ["http://b/v1"], "model": model} for model in ("m", "n"))
    moved = one | {"urls": ["http://c/v1"], "concurrency": 1}

    def identity(judge: Any, verifier: str) -> str:
        return check_parts(spec("http://a/v1", judge, verifier)).identity()

    assert identity(one, "llm_judge") != identity(other, "llm_judge")
    assert identity(one, "llm_judge") == identity(moved, "llm_judge")
    assert identity(one, "numeric") == identity(other, "numeric") == identity(None, "numeric")
