"""What a run is about: its tasks, and its planned rollouts."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from gym_spark.rollout.plan import chosen_tasks, planned_rollouts
from gym_spark.tables.lake import Lake
from gym_spark.tables.runs import RunRecord
from gym_spark.tables.schemas import INPUTS, TASKS


def tasks_of(lake: Lake, record: RunRecord) -> DataFrame:
    """Return the rows of `tasks` that the run is about: all of its dataset version."""
    return lake.read(TASKS, benchmark=record.spec.benchmark, version=str(record.spec.dataset_version))


def asked(lake: Lake, record: RunRecord) -> DataFrame:
    """Return what verifiers need of the tasks: `task_id`, `verifier_inputs`, `responses_create_params`.

    Of an imported run `rollout_index` as well: there every rollout has an input row of its own, which may differ.
    """
    if record.spec.imported is not None:
        rows = lake.read(INPUTS, run_id=record.spec.run_id)
        request = F.get_json_object("input", "$.responses_create_params").alias("responses_create_params")
        return rows.select("task_id", "rollout_index", F.col("input").alias("verifier_inputs"), request)
    return tasks_of(lake, record).select("task_id", "verifier_inputs", "responses_create_params")


def planned(lake: Lake, record: RunRecord, *more: str) -> DataFrame:
    """Return the plan, one row per planned rollout: the columns of :func:`plan_of` but for `repeats`."""
    plan = plan_of(lake, record, *more)
    if record.spec.imported is not None:
        return plan.drop("repeats")
    return planned_rollouts(plan.drop("rollout_index", "repeats"), num_repeats=record.spec.num_repeats)


def plan_of(lake: Lake, record: RunRecord, *more: str) -> DataFrame:
    """Return the plan: `task_id`, `task_index`, `shard`, `rollout_index`, `repeats`.

    And `more` columns of `tasks`, or of `inputs` where the run was imported. A row stands for `repeats` rollouts, from
    its `rollout_index` on: all of a task, or one of an imported run.
    """
    if record.spec.imported is not None:
        rows = lake.read(INPUTS, run_id=record.spec.run_id)
        rows = rows.withColumns({"shard": F.lit(0), "repeats": F.lit(1)})
        return rows.select("task_id", "task_index", "shard", "rollout_index", "repeats", *more)
    tasks = tasks_of(lake, record).select("task_id", "task_index", "shard", *more)
    if record.spec.limit is not None:
        # Spark sorts what is picked from in one place, so it is ids only.
        ids = chosen_tasks(tasks.select("task_id"), count=record.planned_tasks, seed=record.spec.limit_seed)
        tasks = tasks.join(ids, on="task_id", how="left_semi")
    return tasks.withColumns({"rollout_index": F.lit(0), "repeats": F.lit(record.spec.num_repeats)})
