"""The verify stage over stored rollouts: `eval reverify` with each verifier, session start excluded.

    python -m tests.performance.verify_stage
    python -m tests.performance.verify_stage --verifiers math --rollouts 4000

A run of tasks x 8 is written into a new lake by Spark: answers of about 600 characters that end in an option's letter
in a box. What is measured is `reverify.reverify`: the verdicts, their commits, and the comparison with the verdicts
that were there.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from typing import Final

from pyspark.sql import functions as F

from gym_spark.config import PartSpec
from gym_spark.flow import open_lake
from gym_spark.reverify import reverify
from gym_spark.tables.lake import Lake
from tests.performance.accounting import cpu_s
from tests.performance.profile_scale import stored_run

#: Verifier -> parameters.
VERIFIERS: Final = {"exact_match": {}, "mcqa": {"grading_mode": "lenient_boxed"}, "math": {}}
_REASONS: Final = "First we look at each of the options and weigh what speaks for it. " * 8


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rollouts", type=int, default=100_000)
    options.add_argument("--verifiers", nargs="+", choices=sorted(VERIFIERS), default=sorted(VERIFIERS))
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="gym-spark-performance-") as folder:
        lake = open_lake(f"{folder}/lake", say=lambda text: None)
        reverified(lake, "exact_match", 800)  # the JVM compiles what is hot
        for verifier in given.verifiers:
            print(json.dumps(reverified(lake, verifier, given.rollouts)), flush=True)  # noqa: T201
        lake.spark.stop()


def reverified(lake: Lake, verifier: str, rollouts: int) -> dict[str, object]:
    """Store a run and judge it; wall and CPU seconds, and how many verdicts a second."""
    letter = F.element_at(F.array(*map(F.lit, "ABCD")), (F.rand(11) * 4).cast("int") + 1)
    answers = F.concat(F.lit(_REASONS), F.lit("So the answer is \\boxed{"), letter, F.lit("}."))
    inputs = {"expected_answer": "B", "options": [{name: f"option {name}"} for name in "ABCD"]}
    record = stored_run(
        lake, rollouts, run_id=f"{verifier}-{rollouts}", output_text=answers, verifier_inputs=json.dumps(inputs)
    )
    cpu, began = sum(cpu_s().values()), time.monotonic()
    part = PartSpec(name=verifier, params=VERIFIERS[verifier])
    done = reverify(lake, record, part, verification_id="again", say=lambda text: None)
    wall, used = time.monotonic() - began, sum(cpu_s().values()) - cpu
    if done.change.verdicts != {"scored": record.planned_rollouts}:
        raise AssertionError(f"the verdicts are {done.change.verdicts}")
    return {
        "verifier": verifier,
        "rollouts": record.planned_rollouts,
        "wall_s": round(wall, 2),
        "per_s": round(record.planned_rollouts / wall),
        "cpu_s": round(used, 2),
    }


if __name__ == "__main__":
    main()
