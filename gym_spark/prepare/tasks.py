"""Rows become tasks: keyed, prompted, fingerprinted and sharded, as one Arrow table of `schemas.TASKS`.

A benchmark's version digests the id, request and verifier inputs of every task in id order. So it changes with any gold
or prompt, and does not change with the order of the source, the metadata or the number of shards.
"""

from __future__ import annotations

import hashlib
import math
import reprlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from gym_spark.config import JsonObject, canonical_json, digest
from gym_spark.errors import ConfigError
from gym_spark.prepare.catalog import Benchmark
from gym_spark.prepare.manifest import describe
from gym_spark.prepare.prompts import PromptSpec, Shot, ShotPool, messages, render
from gym_spark.prepare.script import Row, read_rows
from gym_spark.prepare.sources import Source
from gym_spark.tables.schemas import TASKS
from gym_spark.verify.base import needed_inputs

#: Tasks a shard aims at: a shard is what one parallel job takes, and a thousand tasks are minutes of GPU time.
TASKS_PER_SHARD: Final = 1000
#: Offenders that a message lists before it says how many more there are.
_LISTED: Final = 10


@dataclass(frozen=True, slots=True)
class PreparedTasks:
    """One version of a benchmark, ready to be stored."""

    benchmark: str
    version: str
    split: str | None
    #: Schema `TASKS.schema`, in source order.
    table: pa.Table
    manifest: JsonObject
    #: Rows that are byte-equal to an earlier one, whether they were kept or dropped.
    duplicates: int
    shards: int


@dataclass(frozen=True, slots=True)
class _Numbered:
    """A row, its position in the source from 0, and its id."""

    index: int
    row: Row
    task_id: str
    #: What the user would call it: benchmark and row.
    where: str


def build_tasks(
    benchmark: Benchmark,
    source: Source,
    *,
    prompt: PromptSpec | None = None,
    num_shards: int | None = None,
    drop_duplicates: bool = False,
) -> PreparedTasks:
    """Run a benchmark's prepare script and build its tasks; nothing is written.

    Args:
        benchmark: The benchmark.
        source: Its resolved input.
        prompt: Replaces the benchmark's own prompt (``--prompt-config``).
        num_shards: Shards to make; by default one for each `TASKS_PER_SHARD`, rounded up.
        drop_duplicates: Leave byte-equal rows out instead of keeping them as tasks of their own.

    Raises:
        ConfigError: the source or script failed, no row came, given ids repeat, or rows and prompt do not fit together.
    """
    if num_shards is not None and num_shards < 1:
        raise ConfigError(f"The number of shards is {num_shards}; give 1 or more.")
    rows = list(read_rows(benchmark, source))
    if not rows:
        raise ConfigError(f"Benchmark '{benchmark.spec.name}' has no rows in its source; check the file.")
    tasks, duplicates = _identify(rows, benchmark.spec.name, drop_duplicates)
    _check_needs(tasks, benchmark.spec.verifier.name)
    requests = _requests(tasks, benchmark.spec.prompt, prompt)
    shards = num_shards or math.ceil(len(tasks) / TASKS_PER_SHARD)
    columns = _columns(tasks, requests, shards)
    # Pairs sorted by id: the digest is over content, not over positions.
    version = digest(sorted(zip(columns["task_id"], columns["fingerprint"], strict=True)))
    name, split = benchmark.spec.name, benchmark.spec.split
    same = {"benchmark": name, "version": version, "split": split}
    columns |= {column: [value] * len(tasks) for column, value in same.items()}
    manifest = describe(benchmark, source, [(task.task_id, task.row) for task in tasks], override=prompt)
    manifest |= {"version": version, "duplicates": duplicates, "duplicates_dropped": drop_duplicates}
    table = pa.Table.from_pydict(columns, schema=TASKS.schema)
    return PreparedTasks(name, version, split, table, manifest, duplicates, shards)


def _identify(rows: Sequence[Row], benchmark: str, drop_duplicates: bool) -> tuple[list[_Numbered], int]:
    """Give every row its id and count the byte-equal ones: the given id, or the raw row's digest and occurrence."""
    seen: Counter[str] = Counter()
    tasks = []
    for index, row in enumerate(rows):
        where = f"Benchmark '{benchmark}', row {index + 1}"
        content = hashlib.sha256(_json(row.raw, where, "source row").encode()).hexdigest()
        seen[content] += 1
        if seen[content] > 1 and drop_duplicates:
            continue
        occurrence = f"-{seen[content]}" if seen[content] > 1 else ""
        if row.task_id == "":
            raise ConfigError(f"{where}: the task id is empty; give it one, or None.")
        tasks.append(_Numbered(index, row, row.task_id or f"{content[:16]}{occurrence}", where))
    times = Counter(task.task_id for task in tasks)
    repeated = [f"'{task_id}' ({count} times)" for task_id, count in times.items() if count > 1]
    if repeated:
        raise ConfigError(f"Task ids must be unique in a benchmark, but these repeat: {_listing(repeated)}.")
    return tasks, sum(seen.values()) - len(seen)


def _check_needs(tasks: Sequence[_Numbered], verifier: str) -> None:
    """Refuse rows that the benchmark's verifier could not judge, before a rollout of them is paid for."""
    needs = needed_inputs(verifier)
    for task in tasks:
        for key in needs:
            if task.row.verifier_inputs.get(key) is None:
                raise ConfigError(
                    f"{task.where}: the verifier '{verifier}' needs '{key}', but verifier_inputs has "
                    f"{', '.join(task.row.verifier_inputs) or 'nothing'}; give it in prepare.py."
                )


def _requests(tasks: Sequence[_Numbered], own: PromptSpec | None, override: PromptSpec | None) -> list[JsonObject]:
    """Build each task's `responses_create_params` from the row's own request or the prompt."""
    baked = [str(task.index + 1) for task in tasks if task.row.responses_create_params is not None]
    if override is not None and baked:
        raise ConfigError(
            f"A prompt file is set, but these rows carry a prompt of their own: {_listing(baked)}; "
            "leave out --prompt-config, or take the prompts out of the rows."
        )
    prompt = override or own
    if prompt is None:
        bare = [str(task.index + 1) for task in tasks if task.row.responses_create_params is None]
        if bare:
            raise ConfigError(f"These rows have no prompt: {_listing(bare)}; give one with --prompt-config FILE.")
        return [_baked(task) for task in tasks]
    return _prompted(tasks, prompt)


def _prompted(tasks: Sequence[_Numbered], prompt: PromptSpec) -> list[JsonObject]:
    """Build each task's request from the prompt, except where the row carries its own."""
    asked = [task for task in tasks if task.row.responses_create_params is None]
    for task in asked:
        _json(task.row.fields, task.where, "fields")  # what is not text goes into a prompt as JSON
    users = {task.index: render(prompt.user, task.row.fields, task.where) for task in asked}
    solved = [Shot(users[task.index], task.row.shot_answer) for task in asked if task.row.shot_answer is not None]
    pool = ShotPool(prompt.few_shot, solved) if prompt.few_shot else None
    requests = []
    for task in tasks:
        user = users.get(task.index)
        if user is None:
            requests.append(_baked(task))
        else:
            requests.append(messages(prompt, task.row.fields, user, pool.pick(user) if pool else (), task.where))
    return requests


def _baked(task: _Numbered) -> JsonObject:
    request = task.row.responses_create_params or {}
    given = request.get("input")
    if not given:
        raise ConfigError(f"{task.where}: its request has no 'input'; give it the messages to send.")
    if not isinstance(given, str) and not (isinstance(given, list) and all(isinstance(item, dict) for item in given)):
        raise ConfigError(
            f"{task.where}: its request's 'input' is {reprlib.repr(given)}; give it text, or a list of messages "
            'such as {"role": "user", "content": "2+2?"}.'
        )
    return request


def _columns(tasks: Sequence[_Numbered], requests: Sequence[JsonObject], shards: int) -> dict[str, list[Any]]:
    """Return the columns that differ from task to task."""
    params = [_json(request, task.where, "request") for task, request in zip(tasks, requests, strict=True)]
    verifier = [_json(task.row.verifier_inputs, task.where, "verifier_inputs") for task in tasks]
    return {
        "task_id": [task.task_id for task in tasks],
        "task_index": [task.index for task in tasks],
        "shard": [_shard(task.task_id, shards) for task in tasks],
        "fingerprint": [digest([*pair]) for pair in zip(params, verifier, strict=True)],
        "responses_create_params": params,
        "verifier_inputs": verifier,
        "metadata": [_json(task.row.metadata, task.where, "metadata") for task in tasks],
    }


def _shard(task_id: str, shards: int) -> int:
    return int.from_bytes(hashlib.sha256(task_id.encode()).digest()[:8], "big") % shards


def _json(value: JsonObject, where: str, what: str) -> str:
    """Spell a value as JSON that Arrow can hold, or name the row that cannot be."""
    try:
        text = canonical_json(value)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: its {what} is not plain JSON ({error}).") from error
    return text


def _listing(items: Sequence[str]) -> str:
    more = len(items) - _LISTED
    return ", ".join(items[:_LISTED]) + (f" and {more} more" if more > 0 else "")
