"""Rollouts are judged a unit at a time, each about half a minute and one commit: a kill costs no more than that."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gym_spark.config import EndpointSpec
from gym_spark.errors import StorageError
from gym_spark.tables.keys import ROLLOUT_KEY
from gym_spark.verify.base import Verifier
from gym_spark.verify.judging import JudgeVerifier, concurrency_of

#: A unit's size is chosen so that it takes about so long. Each starts child processes and connections anew, and reads
#: the run's answers once more, so that shorter ones would cost what they save.
UNIT_SECONDS: Final = 30.0
#: Rollouts of the first unit: of a fast verifier, and of a slow one for each Spark task that runs at once or each
#: request in flight. The most that a unit grows at once.
_FAST_ROWS: Final = 100_000
_ROWS_PER_TASK: Final = 100
_ROWS_PER_REQUEST: Final = 4
_GROWTH: Final = 4.0

_GOES_ON: Final = "the verdicts of the finished parts are stored, and --resume judges the rest."


def is_slow(verifier: Verifier) -> bool:
    """Tell whether a verdict takes so long, or costs so much, that it is not to be made twice."""
    asks = verifier.mode == "judge" or isinstance(verifier, JudgeVerifier)
    return asks or verifier.isolated or verifier.wants_sandbox


def first_unit(verifier: Verifier, slots: int, judge: EndpointSpec | None) -> int:
    """Return how many rollouts are judged before anything is known of a verifier's pace.

    Args:
        verifier: The verifier.
        slots: Spark tasks that run at once.
        judge: Endpoint of the model that it asks, if it asks one.
    """
    if isinstance(verifier, JudgeVerifier):
        return _ROWS_PER_REQUEST * concurrency_of(verifier, judge)
    return _ROWS_PER_TASK * slots if is_slow(verifier) else _FAST_ROWS


def in_units(
    todo: DataFrame,
    store: Callable[[DataFrame], None],
    *,
    count: int,
    first_rows: int,
    say: Callable[[str], None],
) -> int:
    """Judge and store rollouts a unit at a time; returns how many units there were.

    Units are ranges of a hash of the rollout's key, so that they are the same whatever is stored meanwhile.

    Args:
        todo: What `verify.stage.unverified` returns.
        store: Judges the rollouts of one unit and commits the verdicts.
        count: How many rollouts there are.
        first_rows: About how many are the first unit, and the smallest that there is.
        say: Told how far it is, after each unit but the last.

    Raises:
        StorageError: Spark or the storage gave up.
        KeyboardInterrupt: as it came, with what is stored by then.
    """
    buckets = -(-count // first_rows)
    bucket = F.pmod(F.xxhash64(*ROLLOUT_KEY), F.lit(max(1, buckets)))
    done, width, units = 0, 1, 0
    while done < buckets:
        end, began = min(done + width, buckets), time.monotonic()
        unit = todo if end - done == buckets else todo.where((bucket >= done) & (bucket < end))
        try:
            store(unit)
        except KeyboardInterrupt as interrupt:
            raise KeyboardInterrupt(f"Interrupted; {_GOES_ON}") from interrupt
        except StorageError as error:
            raise StorageError(f"{str(error).rstrip('.')}; {_GOES_ON}") from error
        pace = (end - done) / (time.monotonic() - began)
        width = max(1, int(min(pace * UNIT_SECONDS, _GROWTH * (end - done))))
        done, units = end, units + 1
        if done < buckets:
            say(f"About {done / buckets:.0%} of {count} rollouts are judged and stored.")
    return units
