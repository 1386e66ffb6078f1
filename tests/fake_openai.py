"""A fake OpenAI server on loopback, for faults and for counting: real sockets, answers that a test chooses.

    with FakeOpenAI(lambda body, n: FakeReply(status=503) if n == 0 else "4") as server:
        ...  # talk to server.url
    assert server.requests == 2

It runs in a thread of its own, so that Spark workers and other processes can reach it too. `close_port` makes an outage
of it: connections break, and its port refuses until `open_port`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import zlib
from collections import Counter, deque
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from aiohttp import web

Json = dict[str, Any]

#: Bodies kept: enough for any test, bounded for the long ones.
BODIES_KEPT = 20_000


@dataclass(frozen=True)
class FakeReply:
    """One answer. With `error` or `raw` set, `text` and what describes it are not used."""

    text: str | None = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    #: Seconds before the answer begins.
    delay_s: float = 0.0
    #: Chat form (prompt_tokens, ...) or Responses form (input_tokens, ...), sent as it is; {} sends none.
    usage: Json | None = None
    #: Chat: the finish reason. Responses: "length" and "content_filter" make the answer incomplete.
    finish_reason: str | None = "stop"
    reasoning: str | None = None
    #: Chat form: [{"id": ..., "function": {"name": ..., "arguments": ...}}].
    tool_calls: tuple[Json, ...] = ()
    #: Body of an error answer, as {"error": ...}.
    error: Json | None = None
    #: Exact body, for broken ones.
    raw: bytes | None = None
    #: Close the connection before the answer, or in the middle of it.
    drop: Literal["before", "during"] | None = None
    #: Send the body in ten pieces, with this many seconds before each.
    drip_s: float = 0.0
    #: Bytes in such a piece, where it shall not be a tenth.
    drip_bytes: int | None = None


Answer = Callable[[Json, int], FakeReply | str]


def last_user_text(body: Json) -> str:
    """Return the text of a request's last user message, of either API."""
    items: Any = body.get("messages", body.get("input"))
    if isinstance(items, str):
        return items
    content = next(item["content"] for item in reversed(items) if item.get("role") == "user")
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def default_answer(body: Json, n: int) -> str:
    """Answer one digit that depends on the question alone."""
    return f"The answer is {zlib.crc32(last_user_text(body).encode()) % 10}."


class FakeOpenAI:
    """The server; start and stop it as a context manager.

    Args:
        answer: ``(body, n) -> FakeReply | text``; `n` counts model calls from 0, refused ones (401, 404) left out.
        api_key: Every other key gets 401.
        models: Every other model name gets 404.

    Attributes:
        url: Base address, ending in ``/v1``.
        counts: Requests by path (``/v1/chat/completions``, ``/health``, ...).
        bodies: Bodies of the model calls, oldest first.
        in_flight: Model calls being answered now.
        peak: Most model calls ever in flight at once.
    """

    def __init__(
        self, answer: Answer = default_answer, *, api_key: str | None = None, models: Collection[str] | None = None
    ) -> None:
        self.answer = answer
        self.api_key = api_key
        self.models = models
        self.url = ""
        self.counts: Counter[str] = Counter()
        self.bodies: deque[Json] = deque(maxlen=BODIES_KEPT)
        self.in_flight = 0
        self.peak = 0
        self._calls = 0
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="fake-openai", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None

    @property
    def port(self) -> int:
        """The port, also while it is closed."""
        return int(self.url.split(":")[2].removesuffix("/v1"))

    @property
    def requests(self) -> int:
        """Model calls received, refused ones included."""
        return self.counts["/v1/chat/completions"] + self.counts["/v1/responses"]

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._started.wait(10):
            raise RuntimeError("the fake server did not start")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def close_port(self) -> None:
        """Refuse connections from now on, and break those that are open."""
        self._do(self._close_port())

    def open_port(self) -> None:
        """Listen on the same port again."""
        self._do(self._open_port(self.port))

    def _do(self, action: Coroutine[None, None, None]) -> None:
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(action, self._loop).result(10)

    async def _open_port(self, port: int) -> None:
        assert self._runner is not None
        self._site = web.TCPSite(self._runner, "127.0.0.1", port, backlog=2048, reuse_address=True)
        await self._site.start()

    async def _close_port(self) -> None:
        assert self._site is not None
        await self._site.stop()
        assert self._runner is not None
        assert self._runner.server is not None
        for connection in list(self._runner.server.connections):
            if connection.transport is not None:
                connection.transport.abort()

    async def _serve(self) -> None:
        app = web.Application(client_max_size=256 * 1024**2)
        app.router.add_post("/v1/chat/completions", self._model_call)
        app.router.add_post("/v1/responses", self._model_call)
        app.router.add_get("/v1/models", self._list_models)
        app.router.add_get("/health", self._health)
        # Requests still waiting when a test ends are cut off at once.
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await self._open_port(0)
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._started.set()
        await self._stop.wait()
        await self._runner.cleanup()

    async def _health(self, request: web.Request) -> web.Response:
        self.counts[request.path] += 1
        return web.json_response({"status": "ok"})

    async def _list_models(self, request: web.Request) -> web.Response:
        self.counts[request.path] += 1
        names = sorted(self.models) if self.models is not None else ["fake"]
        return web.json_response({"object": "list", "data": [{"id": name, "object": "model"} for name in names]})

    async def _model_call(self, request: web.Request) -> web.StreamResponse:
        self.counts[request.path] += 1
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            body = json.loads(await request.read())
            self.bodies.append(body)
            reply = self._refusal(request, body) or self._chosen(body)
            if reply.delay_s:
                await asyncio.sleep(reply.delay_s)
            return await _send(request, reply, body)
        finally:
            self.in_flight -= 1

    def _refusal(self, request: web.Request, body: Json) -> FakeReply | None:
        if self.api_key is not None and request.headers.get("Authorization") != f"Bearer {self.api_key}":
            return FakeReply(status=401, error={"message": "Incorrect API key provided", "code": "invalid_api_key"})
        if self.models is not None and body.get("model") not in self.models:
            message = f"The model `{body.get('model')}` does not exist"
            return FakeReply(status=404, error={"message": message, "code": "model_not_found"})
        return None

    def _chosen(self, body: Json) -> FakeReply:
        n, self._calls = self._calls, self._calls + 1
        reply = self.answer(body, n)
        return FakeReply(text=reply) if isinstance(reply, str) else reply


async def _send(request: web.Request, reply: FakeReply, body: Json) -> web.StreamResponse:
    payload = _payload(request.path, reply, body)
    if reply.drop is None and not reply.drip_s:
        return web.Response(body=payload, status=reply.status, headers=reply.headers, content_type="application/json")
    transport = request.transport
    assert transport is not None
    if reply.drop == "before":
        transport.close()
        return web.Response()
    response = web.StreamResponse(status=reply.status, headers=reply.headers)
    response.content_length = len(payload)
    await response.prepare(request)
    if reply.drop == "during":
        await response.write(payload[: len(payload) // 2])
        transport.close()
        return response
    step = reply.drip_bytes or -(-len(payload) // 10)
    with contextlib.suppress(ConnectionError):  # the client may have given up
        for start in range(0, len(payload), step):
            await asyncio.sleep(reply.drip_s)
            await response.write(payload[start : start + step])
    return response


def _payload(path: str, reply: FakeReply, body: Json) -> bytes:
    if reply.raw is not None:
        return reply.raw
    if reply.error is not None or reply.status != 200:
        return json.dumps({"error": reply.error or {"message": f"status {reply.status} as asked"}}).encode()
    answer = _responses(reply, body) if path.endswith("/responses") else _chat(reply, body)
    return json.dumps(answer).encode()


def _tokens(reply: FakeReply, body: Json) -> tuple[int, int]:
    """Count words: a stand-in for tokens that a test can work out."""
    return len(last_user_text(body).split()), len((reply.text or "").split()) + len((reply.reasoning or "").split())


def _chat(reply: FakeReply, body: Json) -> Json:
    message: Json = {"role": "assistant", "content": reply.text}
    if reply.reasoning is not None:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["tool_calls"] = [{"type": "function", **call} for call in reply.tool_calls]
    inputs, outputs = _tokens(reply, body)
    usage = {"prompt_tokens": inputs, "completion_tokens": outputs, "total_tokens": inputs + outputs}
    choice = {"index": 0, "message": message, "finish_reason": reply.finish_reason, "logprobs": None}
    answer = {"id": "chatcmpl-fake", "object": "chat.completion", "created": 0, "model": body.get("model")}
    return answer | {"choices": [choice]} | _with_usage(reply, usage)


def _responses(reply: FakeReply, body: Json) -> Json:
    output: list[Json] = []
    if reply.reasoning is not None:
        summary = [{"type": "summary_text", "text": reply.reasoning}]
        output.append({"type": "reasoning", "id": "rs_fake", "summary": summary})
    if reply.text:
        part = {"type": "output_text", "text": reply.text, "annotations": []}
        message = {"type": "message", "id": "msg_fake", "role": "assistant", "status": "completed"}
        output.append(message | {"content": [part]})
    for call in reply.tool_calls:
        item = {"type": "function_call", "call_id": call["id"], "status": "completed"}
        output.append(item | call["function"])
    reason = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(reply.finish_reason or "")
    inputs, outputs = _tokens(reply, body)
    usage = {"input_tokens": inputs, "output_tokens": outputs, "total_tokens": inputs + outputs}
    answer: Json = {"id": "resp_fake", "object": "response", "created_at": 0, "model": body.get("model")}
    answer |= {"status": "incomplete" if reason else "completed", "output": output}
    answer["incomplete_details"] = {"reason": reason} if reason else None
    return answer | _with_usage(reply, usage)


def _with_usage(reply: FakeReply, counted: Json) -> Json:
    if reply.usage == {}:
        return {}
    return {"usage": reply.usage if reply.usage is not None else counted}
