"""A stub endpoint that costs far less than whoever measures against it, in a process of its own.

    with stub(StubSpec(latency_s=0.05, answer_bytes=4096)) as endpoint:
        ...  # talk to endpoint.url
        print(endpoint.stats())

It speaks HTTP/1.1 with kept connections by a bare `asyncio.Protocol`, looks at no more of a request than its length,
and answers with bodies that were made before. `tests/fake_openai.py` is the server for tests of behaviour; it costs as
much as a client does.

By hand: ``python -m tests.performance.stub --port 8000 --latency-s 0.05``, then ``/stats`` and ``/reset?mark=N``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import importlib.util
import json
import math
import os
import random
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from statistics import NormalDist
from typing import Any, Final

from tests.processes import REPOSITORY

#: Different answers that are made, at most, and their bytes together: equal ones would be packed into next to nothing
#: where they are stored, which no real answers are.
ANSWERS: Final = 1024
ANSWER_BYTES: Final = 64 << 20
#: How far above the median the 99th percentile of a latency tail is.
TAIL: Final = 20.0
_WORDS: Final = 4000


@dataclass(frozen=True)
class StubSpec:
    """What the stub does.

    Attributes:
        port: 0 takes a free one.
        answer_bytes: Size of an answer's text.
        latency_s: Time from a request to its answer: of every one, or the median of a tail.
        tail: Draw latencies from a lognormal whose 99th percentile is `TAIL` times its median.
        share_429: Share of requests that are turned away at once.
        retry_after_s: What a 429 says in ``Retry-After``.
        share_500: Share of requests that fail after the latency.
        share_drop: Share of connections cut after the latency, without an answer.
        seed: Of latencies, faults and texts.
    """

    port: int = 0
    answer_bytes: int = 4096
    latency_s: float = 0.05
    tail: bool = False
    share_429: float = 0.0
    retry_after_s: int = 0
    share_500: float = 0.0
    share_drop: float = 0.0
    seed: int = 1


#: What an endpoint may do and a run must survive, all at once.
FAULTS: Final = StubSpec(share_429=0.20, retry_after_s=1, share_500=0.05, share_drop=0.02)


@dataclass
class Counts:
    """What the stub has seen since it was reset. Times are seconds on its own clock.

    Attributes:
        requests: Model calls received.
        outcomes: Model calls ended, by kind: answered, refused, failed, dropped, gone (the client left first).
        in_flight: Model calls received and not ended.
        peak: Most of them at once.
        integral_s: In flight, integrated over time: divided by a span it is the mean.
        first_at: When the first request came.
        ended_at: When the newest one ended.
        marked_at: When the request came whose number was asked for at the reset; `marked_s` is the integral then.
    """

    mark: int = 0
    requests: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    in_flight: int = 0
    peak: int = 0
    integral_s: float = 0.0
    first_at: float | None = None
    ended_at: float | None = None
    marked_at: float | None = None
    marked_s: float | None = None
    updated_at: float = 0.0

    def change(self, by: int, now: float, outcome: str | None = None) -> None:
        """Take note that a request came (+1), or ended (-1) and how."""
        self.integral_s += self.in_flight * (now - self.updated_at)
        self.updated_at = now
        self.in_flight += by
        if by > 0:
            self.requests += 1
            self.peak = max(self.peak, self.in_flight)
            if self.first_at is None:
                self.first_at = now
            if self.requests == self.mark:
                self.marked_at, self.marked_s = now, self.integral_s
        if outcome is not None:
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
            self.ended_at = now


class Stub:
    """The behaviour that all connections share."""

    def __init__(self, spec: StubSpec) -> None:
        self.counts = Counts()
        self.spec = spec
        self._random = random.Random(spec.seed)
        self._sigma = math.log(TAIL) / NormalDist().inv_cdf(0.99)
        self._answers = [_http(200, body) for body in _bodies(spec)]
        self._refusal = _http(429, _error("turned away, as asked"), f"Retry-After: {spec.retry_after_s}\r\n")
        self._failure = _http(500, _error("failed, as asked"))
        self.models = _http(200, json.dumps({"object": "list", "data": [{"id": "stub", "object": "model"}]}).encode())

    def draw(self) -> tuple[float, str, bytes]:
        """Return the latency, kind and bytes of the next answer; no bytes: the connection is cut."""
        spec, chance = self.spec, self._random.random()
        if chance < spec.share_429:
            return 0.0, "refused", self._refusal
        latency = self._random.lognormvariate(math.log(spec.latency_s), self._sigma) if spec.tail else spec.latency_s
        if chance < spec.share_429 + spec.share_500:
            return latency, "failed", self._failure
        if chance < spec.share_429 + spec.share_500 + spec.share_drop:
            return latency, "dropped", b""
        return latency, "answered", self._answers[self.counts.requests % len(self._answers)]

    def reset(self, mark: int, now: float) -> None:
        """Count from zero; requests in flight stay in flight."""
        self.counts = Counts(mark=mark, in_flight=self.counts.in_flight, updated_at=now)


class Connection(asyncio.Protocol):
    """One connection: requests come one after another."""

    def __init__(self, stub: Stub) -> None:
        self._stub = stub
        self._loop = asyncio.get_running_loop()
        self._buffer = b""
        self._transport: asyncio.Transport | None = None
        self._open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._buffer[:end].lower()
        at = head.find(b"\r\ncontent-length:")
        length = int(head[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(self._buffer) < end + 4 + length:
            return
        self._buffer = self._buffer[end + 4 + length :]
        if head.startswith(b"post "):
            self._call()
        else:
            self._tell(head.split(b" ", 2)[1].decode())

    def _call(self) -> None:
        self._open = True
        latency, kind, answer = self._stub.draw()
        self._stub.counts.change(+1, self._loop.time())
        if latency > 0:
            self._loop.call_later(latency, self._end, kind, answer)
        else:
            self._end(kind, answer)

    def _end(self, kind: str, answer: bytes) -> None:
        if not self._open or self._transport is None:
            return
        self._open = False
        self._stub.counts.change(-1, self._loop.time(), kind)
        if answer:
            self._transport.write(answer)
        else:
            self._transport.abort()

    def _tell(self, path: str) -> None:
        assert self._transport is not None
        counts, now = self._stub.counts, self._loop.time()
        path, _, query = path.partition("?")
        if path == "/reset":
            self._stub.reset(int(query.removeprefix("mark=") or 0), now)
        counts.integral_s += counts.in_flight * (now - counts.updated_at)
        counts.updated_at = now
        told = {"/stats": asdict(counts), "/reset": {}}.get(path)
        self._transport.write(self._stub.models if told is None else _http(200, json.dumps(told).encode()))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._open:
            self._open = False
            self._stub.counts.change(-1, self._loop.time(), "gone")


def _bodies(spec: StubSpec) -> Iterator[bytes]:
    """Make the answers: words of which few are frequent, about as packable as text is."""
    draw = random.Random(spec.seed)
    words = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(2, 9))) for _ in range(_WORDS)]
    weights = [1 / rank for rank in range(1, _WORDS + 1)]
    for number in range(max(2, min(ANSWERS, ANSWER_BYTES // max(1, spec.answer_bytes)))):
        text = " ".join(draw.choices(words, weights, k=spec.answer_bytes // 5 + 1))
        text = text.ljust(spec.answer_bytes, ".")[: spec.answer_bytes]
        tokens = spec.answer_bytes // 4
        answer = {
            "id": f"chatcmpl-{number}",
            "object": "chat.completion",
            "created": 0,
            "model": "stub",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 20, "completion_tokens": tokens, "total_tokens": 20 + tokens},
        }
        yield json.dumps(answer).encode()


def _error(message: str) -> bytes:
    return json.dumps({"error": {"message": message}}).encode()


def _http(status: int, body: bytes, more: str = "") -> bytes:
    head = f"HTTP/1.1 {status} -\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


@dataclass(frozen=True)
class Endpoint:
    """A running stub.

    Attributes:
        root: Its address without a path.
        pid: Its process.
    """

    root: str
    pid: int

    @property
    def url(self) -> str:
        """The base address for clients."""
        return f"{self.root}/v1"

    def reset(self, mark: int = 0) -> None:
        """Count from zero; note the time of request number `mark`."""
        self._get(f"/reset?mark={mark}")

    def stats(self) -> Counts:
        """Return what was seen since the last reset."""
        return Counts(**self._get("/stats"))

    def _get(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(self.root + path) as answer:
            told: dict[str, Any] = json.loads(answer.read())
            return told


@contextlib.contextmanager
def stub(spec: StubSpec) -> Iterator[Endpoint]:
    """Run a stub for the while."""
    words = [sys.executable, "-m", "tests.performance.stub"]
    for name, value in asdict(spec).items():
        option = f"--{name.replace('_', '-')}"
        words += ([option] if value else []) if isinstance(value, bool) else [option, str(value)]
    with subprocess.Popen(words, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Endpoint(process.stdout.readline().strip(), process.pid)
        finally:
            process.send_signal(signal.SIGTERM)


async def serve(spec: StubSpec) -> None:
    """Serve until the process gets SIGTERM, or whoever started it is gone; says its address on standard output."""
    loop, parent = asyncio.get_running_loop(), os.getppid()
    server = await loop.create_server(partial(Connection, Stub(spec)), "127.0.0.1", spec.port, backlog=4096)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)  # noqa: T201
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    while not ended.is_set() and os.getppid() == parent:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await ended.wait()


def main() -> None:
    """Serve by hand."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for one in fields(StubSpec):
        option = f"--{one.name.replace('_', '-')}"
        if isinstance(one.default, bool):
            options.add_argument(option, action="store_true")
        else:
            options.add_argument(option, type=type(one.default), default=one.default)
    faster = importlib.util.find_spec("uvloop") is not None
    factory = importlib.import_module("uvloop").new_event_loop if faster else None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(serve(StubSpec(**vars(options.parse_args()))))


if __name__ == "__main__":
    main()
