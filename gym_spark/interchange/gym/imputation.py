"""Rollouts without a result that an aggregate counts with reward 0."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gym_spark.config import JsonObject
from gym_spark.interchange.gym.rows import REPEAT, STAMP, TASK, Index

#: (server, task, repeat): servers number their tasks independently.
ServerKey = tuple[str | None, Index, Index]

#: What the task's input tells about the request, not about the task.
_NOT_TASK_FIELDS: Final = ("response", "responses_create_params")
_FAILURE_FIELDS: Final = ("failure_kind", "failure_reason", "mask_sample")


@dataclass(frozen=True, slots=True)
class Imputation:
    """Results with what was added to them.

    Attributes:
        rows: The results as given, then the added rows.
        dropped: Rollouts that have a sidecar row, no result, and do not count, by the class of their last failure.
        failed_as_zero: Rows added for rollouts that failed.
        missing_as_zero: Rows added for rollouts that left no row at all.
    """

    rows: list[JsonObject]
    dropped: Counter[str]
    failed_as_zero: int
    missing_as_zero: int

    @property
    def expected(self) -> int:
        """Rollouts that are known of: those that count, and the dropped ones."""
        return len(self.rows) + self.dropped.total()


def count_as_zero(
    results: Sequence[JsonObject],
    failures: Iterable[JsonObject],
    inputs: Iterable[JsonObject],
    *,
    server_of: Callable[[JsonObject], str | None],
    failure_classes: Collection[str] = (),
    missing: bool = False,
) -> Imputation:
    """Add a row for each rollout that counts although it has no result.

    Args:
        results: Result rows of all shards that belong to a server.
        failures: Sidecar rows of all shards in order; those without key, and those without server, are passed over.
        inputs: Input rows of all shards.
        server_of: Server of a row, None where it names neither server nor agent.
        failure_classes: Failed rollouts of these classes count. The last sidecar row of a rollout tells its class.
        missing: Rollouts with neither result nor sidecar row count.

    Returns:
        Added rows have reward 0.0 unless the failed one has its own, are not masked, and take over the fields of their
        input row that some result of their server has too.
    """
    done = {_key(row, server_of) for row in results}
    last = {_key(row, server_of): row for row in failures if TASK in row and REPEAT in row}
    failed = {key: row for key, row in last.items() if key not in done and key[0] is not None}
    planned = {_key(row, server_of): row for row in inputs}
    fields = _fields_by_server(results, server_of)

    dropped: Counter[str] = Counter()
    added: list[JsonObject] = []
    for key, row in failed.items():
        failure = str(row.get("_ng_failure_class", "unknown"))
        if failure in failure_classes:
            added.append(_filled(_without_failure(row), planned.get(key, {}), fields.get(key[0], set())))
        else:
            dropped[failure] += 1
    failed_as_zero = len(added)
    if missing:
        added += [
            _filled(_bare(row), row, fields.get(key[0], set()))
            for key, row in planned.items()
            if key[0] is not None and key not in done and key not in last
        ]
    return Imputation([*results, *added], dropped, failed_as_zero, len(added) - failed_as_zero)


def _key(row: JsonObject, server_of: Callable[[JsonObject], str | None]) -> ServerKey:
    # As in an aggregate: an absent number is 0.
    return server_of(row), row.get(TASK, 0), row.get(REPEAT, 0)


def _fields_by_server(
    results: Iterable[JsonObject], server_of: Callable[[JsonObject], str | None]
) -> dict[str | None, set[str]]:
    fields: dict[str | None, set[str]] = {}
    for row in results:
        fields.setdefault(server_of(row), set()).update(row)
    return fields


def _without_failure(row: JsonObject) -> JsonObject:
    return {
        name: value
        for name, value in row.items()
        if not name.startswith("_ng_failure_") and name not in _FAILURE_FIELDS
    }


def _bare(row: JsonObject) -> JsonObject:
    return {name: row[name] for name in (TASK, REPEAT, "agent_ref", STAMP) if name in row}


def _filled(row: JsonObject, planned: Mapping[str, object], fields: Collection[str]) -> JsonObject:
    taken = {
        name: value
        for name, value in planned.items()
        if name in fields and name not in row and name not in _NOT_TASK_FIELDS and not name.startswith("_")
    }
    return row | taken | {"reward": row.get("reward", 0.0)}
