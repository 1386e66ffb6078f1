"""Verdicts are stored a unit at a time: every rollout is judged once, and what is stored stays when a unit fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame

from gym_spark.config import EndpointSpec, PartSpec
from gym_spark.errors import StorageError
from gym_spark.tables.lake import Lake
from gym_spark.tables.schemas import ROLLOUTS, TASKS, VERIFICATIONS
from gym_spark.verdict_units import first_unit, in_units
from gym_spark.verify.base import load_verifier
from gym_spark.verify.stage import unverified, verdicts
from tests.spark.frames import RUN, VERIFICATION, rollout, task

HERE = {"run_id": RUN, "verification_id": VERIFICATION}
ROLLOUTS_STORED = 40


def stored(lake: Lake) -> DataFrame:
    """Store a run, and return what has no verdict yet, at any time."""
    lake.ensure(TASKS, ROLLOUTS, VERIFICATIONS)
    lake.append_rows(TASKS, [task("a"), task("b")])
    lake.append_rows(ROLLOUTS, [rollout("ab"[n % 2], n) for n in range(ROLLOUTS_STORED)])
    return unverified(lake.read(ROLLOUTS, run_id=RUN), lake.read(TASKS), lake.read(VERIFICATIONS, **HERE))


def storing(lake: Lake) -> Callable[[DataFrame], None]:
    return lambda rows: lake.append(
        VERIFICATIONS, verdicts(rows, verifier=PartSpec(name="exact_match"), limit_s=10.0, **HERE)
    )


def counts(lake: Lake) -> Counter[int]:
    return Counter(row["rollout_index"] for row in lake.read(VERIFICATIONS, **HERE).collect())


@pytest.mark.parametrize(("first_rows", "commits"), [(40, {1}), (15, {2, 3})])
def test_units_add_up(lake: Lake, first_rows: int, commits: set[int]) -> None:
    """Whole in one commit where it is small; else one small unit, and what is left as large as its pace allows."""
    todo = stored(lake)
    said: list[str] = []
    done = in_units(todo, storing(lake), count=ROLLOUTS_STORED, first_rows=first_rows, say=said.append)
    assert done in commits
    assert len(said) == done - 1
    assert counts(lake) == Counter(range(ROLLOUTS_STORED))
    assert in_units(todo, storing(lake), count=0, first_rows=first_rows, say=said.append) == 0


def test_a_unit_that_fails_leaves_the_others_and_says_how_to_go_on(lake: Lake) -> None:
    todo = stored(lake)
    units: list[DataFrame] = []

    def failing(error: BaseException) -> Callable[[DataFrame], None]:
        def store(rows: DataFrame) -> None:
            units.append(rows)
            if len(units) > 1:
                raise error
            storing(lake)(rows)

        return store

    full = failing(StorageError("disk is full."))
    with pytest.raises(StorageError, match=r"disk is full; .* --resume judges the rest"):
        in_units(todo, full, count=ROLLOUTS_STORED, first_rows=15, say=print)
    assert 0 < counts(lake).total() < ROLLOUTS_STORED
    units.clear()
    with pytest.raises(KeyboardInterrupt, match="--resume judges the rest"):
        in_units(todo, failing(KeyboardInterrupt()), count=todo.count(), first_rows=10, say=print)
    in_units(todo, storing(lake), count=todo.count(), first_rows=100, say=print)
    assert counts(lake) == Counter(range(ROLLOUTS_STORED))


def test_the_first_unit_is_small_where_a_verifier_is_slow() -> None:
    endpoint = EndpointSpec(model="m", urls=["http://judge"], concurrency=64)
    sizes = {name: first_unit(load_verifier(name, {}), 2, endpoint) for name in ("exact_match", "math", "llm_judge")}
    assert sizes == {"exact_match": 100_000, "math": 200, "llm_judge": 256}
