"""A NeMo Gym resources server judges: what it is sent, which of its replies is a reward, and whether it may at all."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from gym_spark.errors import ConfigError
from gym_spark.verify.base import load_verifier
from tests.e2e.test_judging import judged

Row = dict[str, Any]
Reply = tuple[int, Any]

#: A server of one try, so that no test waits.
ONCE = {kind: {"attempts": 1} for kind in ("server_error", "dropped", "unreachable", "invalid_reply")}


@dataclass
class Server:
    """What a server was asked."""

    url: str = ""
    bodies: list[Row] = field(default_factory=list)
    asked_mode: int = 0


@contextmanager
def resources_server(reply: Callable[[Row, int], Reply], mode: str | None = "stateless") -> Iterator[Server]:
    """Serve ``/verify``, and ``/reverify_mode`` unless `mode` is None."""
    seen = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.bodies.append(body)
            self.answer(*(reply(body, len(seen.bodies) - 1) if self.path == "/verify" else (404, {})))

        def do_GET(self) -> None:
            seen.asked_mode += 1
            self.answer(*((200, mode) if mode is not None and self.path == "/reverify_mode" else (404, {})))

        def answer(self, status: int, body: Any) -> None:
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    seen.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_row_goes_out_with_the_answer_and_its_own_numbers_come_back_as_scores() -> None:
    """NeMo Gym's servers send the row back: a number that the task has is no score, nor is one about the reward."""
    own = {
        "reward": 0.5,
        "extracted_answer": "x",
        "library_reward": 1.0,
        "is_short": True,
        "_ng_x": 3,
        "mask_sample": False,
        "judge_evaluations": [{"verdict_label": "[[A=B]]"}],
        "nothing": None,
    }
    inputs = {"expected_answer": "4", "difficulty": 3, "reward": 0.0, "responses_create_params": {"input": "old"}}
    with resources_server(lambda body, n: (200, body | own)) as server:
        (row,) = judged("remote", [{"answer": "x", "inputs": inputs}], None, url=server.url)
    assert (row["state"], row["reward"], row["extracted_answer"]) == ("scored", 0.5, "x")
    assert dict(row["scores"]) == {"library_reward": 1.0, "is_short": 1.0}
    assert json.loads(row["detail"]) == {"reply": {"_ng_x": 3, "judge_evaluations": own["judge_evaluations"]}}
    request = {"input": [{"role": "user", "content": "2+2?"}]}
    sent = {"expected_answer": "4", "difficulty": 3, "responses_create_params": request, "response": {"output": []}}
    assert server.bodies == [sent]


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        pytest.param((200, {"reward": 0.0, "_ng_failure_class": "judge_failed"}), "judge_failed", id="failure class"),
        pytest.param((200, {"reward": 0, "invalid_judge_response": True}), "judge_invalid", id="invalid judge reply"),
        pytest.param((200, {"reward": 0, "mask_sample": True, "failure_kind": "oom"}), "oom", id="masked with a kind"),
        pytest.param((200, {"reward": 0, "mask_sample": True}), "masked", id="masked"),
        pytest.param((200, {"reward": 1, "_ng_no_persist": True}), "no_persist", id="not to be stored"),
        pytest.param((200, {}), "unparseable", id="no reward"),
        pytest.param((200, {"reward": "high"}), "unparseable", id="reward in words"),
        pytest.param((200, {"reward": True}), "unparseable", id="reward that is a boolean"),
        pytest.param((200, b'{"reward": NaN}'), "unparseable", id="reward that is no number"),
        pytest.param((200, b'{"reward": 1e999}'), "unparseable", id="infinite reward"),
        pytest.param((200, [1]), "http", id="a list"),
        pytest.param((200, b"<html>"), "http", id="no JSON"),
        pytest.param((500, {}), "http", id="500"),
        pytest.param((422, {"detail": "field required"}), "http", id="422"),
        pytest.param((302, {}), "http", id="a redirect"),
    ],
)
def test_a_reply_without_a_reward_that_counts_is_a_judge_failure(reply: Reply, kind: str) -> None:
    with resources_server(lambda body, n: reply) as server:
        (row,) = judged("remote", [{"answer": "x"}], None, url=server.url, retries=ONCE)
    detail = json.loads(row["detail"])
    assert (row["state"], row["reward"], detail["kind"]) == ("judge_failed", None, kind)
    assert detail["reason"]


def test_what_a_request_leaves_unset_is_left_out_but_not_what_the_task_says_is_null() -> None:
    """NeMo Gym stores every parameter of a request, null where nobody set it, and its servers refuse some nulls."""
    request = {"input": "2+2?", "stream": None, "tools": [{"parameters": {"default": None}}]}
    rows = [{"answer": "x", "request": request, "inputs": {"hint": None}}]
    with resources_server(lambda body, n: (200, {"reward": 1})) as server:
        judged("remote", rows, None, url=server.url)
    asked = {"input": "2+2?", "tools": [{"parameters": {"default": None}}]}
    assert server.bodies == [{"hint": None, "responses_create_params": asked, "response": {"output": []}}]


def test_a_server_that_falters_is_asked_again() -> None:
    """A 503 and a 500, then a reward."""
    with resources_server(lambda body, n: [(503, {}), (500, {}), (200, {"reward": 1})][n]) as server:
        (row,) = judged("remote", [{"answer": "x"}], None, url=server.url)
        assert len(server.bodies) == 3
    assert row["reward"] == 1.0


def test_a_server_that_is_gone_is_a_judge_failure() -> None:
    with resources_server(lambda body, n: (200, {"reward": 1})) as server:
        pass
    (row,) = judged("remote", [{"answer": "x"}], None, url=server.url, retries=ONCE)
    assert (row["state"], json.loads(row["detail"])["failure"]) == ("judge_failed", "unreachable")


@pytest.mark.parametrize(
    ("told", "mode"),
    [
        ("stateless", "stateless"),
        ("unsupported", "live_session"),
        ("unknown", "unknown"),
        ("?", "unknown"),
        (None, "unknown"),
    ],
)
def test_the_server_says_whether_it_may_judge_stored_rollouts(told: str | None, mode: str) -> None:
    with resources_server(lambda body, n: (200, {}), mode=told) as server:
        verifier = load_verifier("remote", {"url": server.url})
        assert server.asked_mode == 0, "a configuration is checked without asking anyone"
        assert (verifier.mode, verifier.mode, server.asked_mode) == (mode, mode, 1)
        stated = load_verifier("remote", {"url": server.url, "reverify_mode": "stateless"})
        assert (stated.mode, server.asked_mode) == ("stateless", 1)


def test_a_server_that_is_gone_says_nothing_of_its_mode() -> None:
    with resources_server(lambda body, n: (200, {})) as server:
        pass
    assert load_verifier("remote", {"url": server.url}).mode == "unknown"


@pytest.mark.parametrize("url", ["ftp://x", "http://user:secret@x", "x", "http://x?key=secret"])
def test_an_address_that_is_none_or_holds_a_secret_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        load_verifier("remote", {"url": url})
