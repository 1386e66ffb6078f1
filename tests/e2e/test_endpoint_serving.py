"""The embedded model server as a process: it serves, and it never outlives its parent."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest

from gym_spark.config import EndpointSpec, SamplingSpec
from gym_spark.endpoint.client import EndpointClient
from gym_spark.endpoint.serving import local_model_server
from gym_spark.endpoint.wire import Api, Reply
from gym_spark.errors import RolloutError

pytest.importorskip("xllamacpp", reason="the embedded endpoint is the extra 'local'")

PARENT = """
import time
from gym_spark.endpoint.serving import local_model_server
with local_model_server() as server:
    print(server.pid, flush=True)
    time.sleep(120)
"""


def alive(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return state.strip() not in ("", "Z")  # a zombie only waits to be reaped by its new parent


def wait_gone(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(pid)


def test_the_small_model_answers_both_apis_and_stops_at_the_end() -> None:
    with local_model_server() as server:

        async def ask(api: Api, prompt: str) -> Reply:
            async with EndpointClient(EndpointSpec(urls=(server.url,), model=server.model, api=api)) as client:
                return await client.generate({"input": prompt}, SamplingSpec(temperature=0, max_output_tokens=8))

        chat, responses = (asyncio.run(ask(api, "What is 3 + 4?")) for api in ("chat", "responses"))
        assert chat.output_text
        assert chat.output_text == responses.output_text
        assert chat.usage.output_tokens == 8
        # llama.cpp says "length" in one flavour and "completed" in the other: the state is the same.
        assert (chat.answer_state, responses.answer_state) == ("truncated", "truncated")
        with pytest.raises(RolloutError) as caught:
            asyncio.run(ask("chat", "word " * 4000))
        assert (caught.value.kind, caught.value.requests) == ("context_length_exceeded", 1)
        assert server.model == "SmolLM2-135M-Instruct"
        assert server.server_version.startswith("xllamacpp 2026.")
    assert not alive(server.pid)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_the_server_ends_with_its_parent(how: signal.Signals) -> None:
    # A session of its own, so that the signal can go to the whole group, as Ctrl-C does.
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert alive(child)
        os.killpg(parent.pid, how)
    assert wait_gone(child)
