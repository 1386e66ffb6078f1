"""Verifiers that ask a server: judgeable rollouts enter, many are judged at once, verdicts leave in the same order.

A server that fails is no wrong answer: its verdict is ``judge_failed`` with a reason and a `kind`, and never a reward.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

from gym_spark.config import EndpointSpec, JsonObject, SamplingSpec
from gym_spark.endpoint.client import EndpointClient
from gym_spark.endpoint.failures import FATAL_KINDS, EndpointFailure
from gym_spark.endpoint.usage import Usage, sum_usage, usage_row
from gym_spark.endpoint.wire import Reply
from gym_spark.errors import GymSparkError, boundary
from gym_spark.verify.base import Judgeable, JudgeFailed, Mode, UnscoredState, Verdict, Verifier

#: Verdicts that may wait for an older one, for each request in flight: one slow reply must not idle the others.
_AHEAD: Final = 8
#: Requests in flight that a worker has at least, if there is more than one worker: a slow reply idles few others.
LEAST_LANES: Final = 4
#: Failures in a row that lie in the set-up (a key, an address), after which a worker asks no more: as in collection, a
#: firewall, say, may refuse a single prompt with the status of a wrong key.
FATAL_ROW: Final = 5
#: Characters kept of a reply, from its end, where the verdict stands.
REPLY_CHARS: Final = 20_000

#: Sends one request (Responses API parameters) to the judge and returns its reply; raises `EndpointFailure`.
Ask = Callable[[JsonObject], Awaitable[Reply]]


class JudgeVerifier(Verifier):
    """Base of verifiers that ask a server while they judge."""

    mode: ClassVar[Mode] = "judge"
    needs_judge: ClassVar[bool] = True
    #: How the judge samples.
    sampling: SamplingSpec = SamplingSpec()
    #: Rollouts that are judged at once over all workers, where no judge's endpoint says how many.
    concurrency: int = 32

    @abstractmethod
    async def verify_with(self, item: Judgeable, ask: Ask) -> Verdict:
        """Judge one rollout. Whatever it raises besides becomes ``verifier_error``.

        Raises:
            JudgeFailed: the server's reply cannot be used.
            EndpointFailure: of `ask`; it is passed on.
        """

    def verify(self, item: Judgeable) -> Verdict:
        """Refuse: without an event loop and an endpoint there is nobody to ask."""
        raise TypeError(f"{type(self).__name__} judges with `verify_with`, in an event loop")

    async def aclose(self) -> None:
        """Give back what was taken; called once, after the last verdict."""


def workers_for(verifier: JudgeVerifier, judge: EndpointSpec | None, slots: int) -> int:
    """Return over how many workers a verifier's requests are to be spread.

    Args:
        verifier: The verifier.
        judge: The judge's endpoint, if the verifier needs one.
        slots: Spark tasks that run at once.
    """
    return max(1, min(slots, concurrency_of(verifier, judge) // LEAST_LANES))


def judged_by_calls(
    items: Iterable[Judgeable | Verdict], verifier: JudgeVerifier, judge: EndpointSpec | None, *, workers: int
) -> Iterator[Verdict]:
    """Yield one verdict per item, in the items' order, with this worker's share of requests in flight.

    An item is read when a request may go out for it, so that no more of them are in memory than requests in flight.

    Args:
        items: A verdict among them is passed on in its place.
        verifier: The verifier, warm.
        judge: The judge's endpoint, if the verifier needs one; its limits are of all workers together.
        workers: How many share them.
    """
    lanes = max(1, concurrency_of(verifier, judge) // workers)
    source, window, running = iter(items), deque[Verdict | asyncio.Task[Verdict]](), set[asyncio.Task[Verdict]]()
    with asyncio.Runner() as runner:
        desk = _Desk(verifier)
        if verifier.needs_judge and judge is not None:
            desk.client = runner.run(_client(judge, lanes, 1 / workers))
        try:
            while True:
                while len(running) < lanes and len(window) < _AHEAD * lanes:
                    item = next(source, None)
                    if item is None:
                        break
                    if isinstance(item, Verdict):
                        window.append(item)
                    else:
                        window.append(task := runner.get_loop().create_task(desk.judged(item)))
                        running.add(task)
                if not window:
                    return
                first = window[0]
                if isinstance(first, Verdict) or first.done():
                    window.popleft()
                    yield first if isinstance(first, Verdict) else first.result()
                else:
                    running = runner.run(_some_ended(running))
        finally:
            runner.run(desk.close(running))


def concurrency_of(verifier: JudgeVerifier, judge: EndpointSpec | None) -> int:
    """Return how many rollouts are judged at once, over all workers."""
    return judge.concurrency if verifier.needs_judge and judge is not None else verifier.concurrency


async def _client(judge: EndpointSpec, lanes: int, share: float) -> EndpointClient:
    return EndpointClient(judge, concurrency=lanes, share=share)


async def _some_ended(running: set[asyncio.Task[Verdict]]) -> set[asyncio.Task[Verdict]]:
    """Wait until one has ended, and return those that have not."""
    _, pending = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    return pending


@dataclass(slots=True)
class _Desk:
    """One worker's judge, and what it has learned of it."""

    verifier: JudgeVerifier
    client: EndpointClient | None = None
    #: Failures in a row that lie in the set-up.
    fatal: int = 0

    async def close(self, running: set[asyncio.Task[Verdict]]) -> None:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if self.client is not None:
            await self.client.aclose()
        await self.verifier.aclose()

    async def judged(self, item: Judgeable) -> Verdict:
        """Return the verdict on one rollout, with what the judge said and what that cost in the detail."""
        calls = _Calls(self, item)
        try:
            with boundary("verifier"):
                verdict = await self.verifier.verify_with(item, calls.ask)
                if not isinstance(verdict, Verdict):
                    raise TypeError(f"the verifier returned {type(verdict).__name__}, not a Verdict")
                verdict = verdict.checked()
        except EndpointFailure as failure:
            told = {"kind": "http", "failure": failure.kind}
            verdict = _unscored("judge_failed", f"the judge could not be asked ({failure.kind}: {failure})", told)
        except JudgeFailed as failure:
            verdict = _unscored("judge_failed", str(failure), {"kind": failure.kind})
        except GymSparkError as error:
            verdict = _unscored("verifier_error", str(error), {})
        return replace(verdict, detail=verdict.detail | calls.told()).checked()

    async def send(self, params: JsonObject, session: str) -> Reply:
        """Ask, unless the judge has refused so often that it surely will."""
        if self.client is None:
            raise TypeError(f"{type(self.verifier).__name__} asks a judge, and does not say so with needs_judge")
        if self.fatal >= FATAL_ROW:
            raise EndpointFailure("refused", f"not asked, for the judge refused {self.fatal} requests in a row")
        try:
            reply = await self.client.generate(params, self.verifier.sampling, session)
        except EndpointFailure as failure:
            self.fatal = self.fatal + 1 if failure.kind in FATAL_KINDS else 0
            raise
        self.fatal = 0
        return reply


@dataclass(slots=True)
class _Calls:
    """The judge's calls for one rollout."""

    desk: _Desk
    item: Judgeable
    replies: list[str | None] = field(default_factory=list)
    usages: list[Usage] = field(default_factory=list)

    async def ask(self, params: JsonObject) -> Reply:
        try:
            reply = await self.desk.send(params, f"{self.item.task_id}#{self.item.rollout_index}")
        except EndpointFailure as failure:
            self.usages.append(failure.usage)
            raise
        self.usages.append(reply.usage)
        text = reply.output_text
        self.replies.append(text if text is None else text[-REPLY_CHARS:])
        return reply

    def told(self) -> JsonObject:
        """Return what the judge said, and the tokens that all tries are known to have cost."""
        usage = {name: count for name, count in usage_row(sum_usage(self.usages)).items() if count is not None}
        told = {"judge_replies": self.replies, "judge_usage": usage}
        return {key: value for key, value in told.items() if value}


def _unscored(state: UnscoredState, reason: str, told: JsonObject) -> Verdict:
    return Verdict(state, None, detail={"reason": reason} | told)
