"""The embedded endpoint's own process: llama.cpp's OpenAI-compatible server over one GGUF file.

Started by `endpoint.serving` as ``python -m gym_spark.endpoint.local_server``. It writes its address into a file once
the model is loaded, and ends when its standard input does: so it dies with its parent, even by ``kill -9``.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
from pathlib import Path

import xllamacpp

#: How often to look whether the parent is still there, beside the end of standard input: a forked sibling may have
#: inherited the other end of the pipe and hold it open.
PARENT_POLL_S = 1.0


def main() -> None:
    """Load the model, serve on a free loopback port, and stay until the parent is gone."""
    parser = argparse.ArgumentParser(prog="python -m gym_spark.endpoint.local_server", description=__doc__)
    parser.add_argument("--model", required=True, help="GGUF file")
    parser.add_argument("--alias", required=True, help="model name to answer with")
    parser.add_argument("--address-file", type=Path, required=True, help="file to write the address into")
    parser.add_argument("--threads", type=int, required=True, help="threads of computation")
    parser.add_argument("--parallel", type=int, required=True, help="requests computed at once; more are queued")
    parser.add_argument("--context", type=int, required=True, help="tokens of prompt and answer, per request")
    options = parser.parse_args()

    parent = os.getppid()
    server = xllamacpp.Server(_parameters(options))
    ready = options.address_file.with_suffix(".part")
    ready.write_text(server.listening_address, encoding="utf-8")
    ready.replace(options.address_file)
    _wait_for_end(parent)
    # The server's threads hold nothing that needs saving, and joining them would wait for the answers in the making.
    os._exit(0)


def _parameters(options: argparse.Namespace) -> xllamacpp.CommonParams:
    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.model_alias = {options.alias}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_parallel = options.parallel
    params.n_ctx = options.context * options.parallel  # llama.cpp splits it between the slots
    params.n_gpu_layers = 0
    for threads in (params.cpuparams, params.cpuparams_batch):
        threads.n_threads = options.threads
    # The prompt cache in memory grew to over 1 GB; benchmark prompts share little.
    params.cache_ram_mib = 0
    # Warnings and errors only: a line per request would fill the disk in a long run.
    params.verbosity = 1
    return params


def _wait_for_end(parent: int) -> None:
    while os.getppid() == parent:
        readable, _, _ = select.select([sys.stdin], [], [], PARENT_POLL_S)
        if readable and not os.read(sys.stdin.fileno(), 1024):
            return


if __name__ == "__main__":
    main()
