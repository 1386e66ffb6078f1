"""The verify stage on a lake: first verdicts and later ones are made in the same way."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame

from gym_spark.config import EndpointSpec, PartSpec
from gym_spark.rollout.stage import task_slots
from gym_spark.verify.base import load_verifier
from gym_spark.verify.judging import JudgeVerifier
from gym_spark.verify.stage import verdicts

#: Wall-clock limit of one verdict in a child process.
VERIFY_LIMIT_S: Final = 10.0


def judged(
    todo: DataFrame,
    *,
    run_id: str,
    verification_id: str,
    verifier: PartSpec,
    sandbox: str,
    judge: EndpointSpec | None,
) -> DataFrame:
    """Return the verdicts on rollouts, as rows of `verifications`; nothing is judged before they are written.

    Args:
        todo: What `verify.stage.unverified` returns.
        run_id: The run.
        verification_id: Name of the verification.
        verifier: Which verifier, with which parameters.
        sandbox: Where model-written code may run (`RunSpec.sandbox`).
        judge: Endpoint of the model that the verifier asks (`RunSpec.judge`), with its addresses; its limits are shared
            out over the tasks that Spark runs at once.

    Raises:
        ConfigError: the verifier cannot be built, or lacks a sandbox or a judge that it needs.
    """
    asks = isinstance(load_verifier(verifier.name, verifier.params), JudgeVerifier)
    return verdicts(
        todo,
        run_id=run_id,
        verification_id=verification_id,
        verifier=verifier,
        limit_s=VERIFY_LIMIT_S,
        sandbox=sandbox,
        judge=judge,
        workers=task_slots(todo.sparkSession) if asks else 1,
    )
