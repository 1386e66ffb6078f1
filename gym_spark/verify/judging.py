"""Verifiers that ask a model: judgeable rollouts enter, many are judged at once, verdicts leave in their order."""

from __future__ import annotations

import asyncio
import itertools
from abc import abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, ClassVar, Final

from gym_spark.config import EndpointSpec, JsonObject, SamplingSpec
from gym_spark.endpoint.client import EndpointClient
from gym_spark.endpoint.failures import EndpointFailure
from gym_spark.endpoint.wire import Reply
from gym_spark.verify.base import Judgeable, JudgeFailed, Mode, Verdict, Verifier, boundary_verdict

#: Rollouts that are read ahead for each request in flight: a slow one must not idle the others.
_AHEAD: Final = 4

#: Sends one prompt to the judge and returns its reply; raises `EndpointFailure`.
Ask = Callable[[str], Awaitable[Reply]]


class JudgeVerifier(Verifier):
    """Base of verifiers that ask a model. A judge that fails leaves ``judge_failed``, never a reward."""

    mode: ClassVar[Mode] = "judge"
    needs_judge: ClassVar[bool] = True
    #: How the judge samples.
    sampling: SamplingSpec = SamplingSpec(temperature=0.0)
    #: Rollouts that are judged at once where no judge's endpoint says how many.
    concurrency: int = 16

    @abstractmethod
    async def verify_with(self, item: Judgeable, ask: Ask) -> Verdict:
        """Judge one rollout.

        Raises:
            JudgeFailed: the judge's reply cannot be read.
            EndpointFailure: of `ask`; it is passed on.
            ValueError: the task's inputs are wrong.
        """

    def verify(self, item: Judgeable) -> Verdict:
        """Refuse: without an endpoint there is nobody to ask."""
        raise TypeError(f"{type(self).__name__} judges with `verify_with`, in an event loop")

    async def aclose(self) -> None:
        """Give back what was taken; called once, after the last verdict."""


def judged_by_calls(
    items: Iterable[Judgeable | Verdict], verifier: JudgeVerifier, judge: EndpointSpec | None, *, workers: int
) -> Iterator[Verdict]:
    """Yield one verdict per item, in the items' order, with the judge's share of requests in flight.

    Args:
        items: A verdict among them is passed on in its place.
        verifier: The verifier, warm.
        judge: The judge's endpoint, if the verifier needs one; its limits are of all workers together.
        workers: How many share them.
    """
    lanes = max(1, (judge.concurrency if judge is not None else verifier.concurrency) // workers)
    source, window = iter(items), deque[Verdict | asyncio.Task[Verdict]]()
    with asyncio.Runner() as runner:
        client = None if judge is None else runner.run(_client(judge, lanes, 1 / workers))
        loop, turns = runner.get_loop(), asyncio.Semaphore(lanes)
        try:
            while True:
                for item in itertools.islice(source, _AHEAD * lanes - len(window)):
                    if not isinstance(item, Verdict):
                        window.append(loop.create_task(_judged(verifier, item, client, turns)))
                    else:
                        window.append(item)
                if not window:
                    return
                first = window.popleft()
                yield first if isinstance(first, Verdict) else runner.run(_ended(first))
        finally:
            for task in window:
                if isinstance(task, asyncio.Task):
                    task.cancel()
            if client is not None:
                runner.run(client.aclose())
            runner.run(verifier.aclose())


async def _client(judge: EndpointSpec, lanes: int, share: float) -> EndpointClient:
    return EndpointClient(judge, concurrency=lanes, share=share)


async def _ended(task: asyncio.Task[Verdict]) -> Verdict:
    return await task


async def _judged(
    verifier: JudgeVerifier, item: Judgeable, client: EndpointClient | None, turns: asyncio.Semaphore
) -> Verdict:
    """Return the verdict on one rollout, with what the judge said and its tokens in the detail."""
    replies: list[Reply] = []

    async def ask(prompt: str) -> Reply:
        if client is None:
            raise TypeError(f"{type(verifier).__name__} asks a judge, and does not say so with needs_judge")
        reply = await client.generate({"input": prompt}, verifier.sampling, item.task_id)
        replies.append(reply)
        return reply

    try:
        async with turns:
            verdict = await boundary_verdict(verifier.verify_with(item, ask))
    except EndpointFailure as failure:
        verdict = _failed("http", f"the judge could not be asked ({failure.kind}: {failure})")
    except JudgeFailed as failure:
        verdict = _failed(failure.kind, str(failure))
    told: JsonObject = {}
    if replies:
        counted = [reply.usage.total_tokens for reply in replies]
        told = {
            "judge_replies": [reply.output_text for reply in replies],
            "judge_tokens": sum(filter(None, counted)) if None not in counted else None,
        }
    return replace(verdict, detail=verdict.detail | told).checked()


def _failed(kind: str, reason: str) -> Verdict:
    return Verdict("judge_failed", None, detail={"reason": reason, "kind": kind})


def filled(template: str, values: dict[str, Any]) -> str:
    """Put texts into a template's ``{name}`` places, in one pass: what a text holds is not looked at."""
    pieces, rest = list[str](), template
    names = sorted(values, key=len, reverse=True)
    while True:
        places = [(rest.find("{" + name + "}"), name) for name in names]
        found = min(((at, name) for at, name in places if at >= 0), default=None)
        if found is None:
            return "".join([*pieces, rest])
        at, name = found
        pieces += [rest[:at], str(values[name])]
        rest = rest[at + len(name) + 2 :]
