# Databricks notebook source
# MAGIC %md
# MAGIC # gym-spark in five cells
# MAGIC One real evaluation: a small benchmark, a model, and what is stored of it as Delta tables.
# MAGIC
# MAGIC It runs the same on a laptop (`python notebooks/quickstart.py`, or as a notebook in an editor) and on
# MAGIC Databricks, on a cluster that has the `gym-spark` wheel as a library. Without `GYM_SPARK_MODEL_URL` a
# MAGIC small model is served on the driver.

# COMMAND ----------

import os
from datetime import UTC, datetime

from pyspark.sql import functions as F

import gym_spark as gs
from gym_spark.tables.schemas import METRICS, ROLLOUTS, TASKS, VERIFICATIONS

# A folder, an object-store address, or catalog.schema of Unity Catalog.
LAKE = os.environ.get("GYM_SPARK_LAKE", "./lake")
# Any OpenAI-compatible server, and the model that it serves.
MODEL_URL = os.environ.get("GYM_SPARK_MODEL_URL")
MODEL = os.environ.get("GYM_SPARK_MODEL")
RUN_ID = f"quickstart-{datetime.now(UTC):%Y%m%d-%H%M%S}"

# COMMAND ----------

# MAGIC %md
# MAGIC ## Run
# MAGIC A run is a specification: the benchmark brings the defaults, and what is not given here keeps them.

# COMMAND ----------

evaluation = gs.resolve_run(
    {
        "benchmark": "arithmetic",
        "run_id": RUN_ID,
        "limit": 6,
        "endpoint": {"urls": [MODEL_URL] if MODEL_URL else [], "model": MODEL},
    }
)
lake = gs.open_lake(LAKE)
profile = gs.run_evaluation(evaluation.spec, evaluation.benchmark, lake, show=gs.ProgressLine())

# COMMAND ----------

# MAGIC %md
# MAGIC ## Look at the numbers
# MAGIC Each says over what it was computed. Over the plan, a rollout that failed counts as not solved.

# COMMAND ----------

print(profile.coverage.summary())
numbers = lake.read(METRICS, run_id=RUN_ID).orderBy("denominator", "name")
numbers.select("name", "denominator", "value", "ci_low", "ci_high", "n_tasks").show()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Look at the rollouts
# MAGIC What the model did and what the verifier thought of it are two tables, joined by the rollout's key.

# COMMAND ----------

rollouts = lake.read(ROLLOUTS, run_id=RUN_ID)
verdicts = lake.read(VERIFICATIONS, run_id=RUN_ID)
tasks = lake.read(TASKS, benchmark=profile.benchmark, version=profile.dataset_version).select("task_id", "metadata")
judged = rollouts.join(verdicts, on=["run_id", "task_id", "rollout_index", "attempt"]).join(tasks, on="task_id")
answers = judged.select("metadata", "rollout_index", "output_text", "extracted_answer", "reward")
answers.orderBy("metadata", "rollout_index").show(8, truncate=60)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Ask anything
# MAGIC They are plain DataFrames. Do wrong answers take more tokens?

# COMMAND ----------

by_reward = judged.groupBy("reward").agg(
    F.count("*").alias("rollouts"),
    F.avg("usage.output_tokens").alias("output_tokens"),
    F.avg("latency_ms").alias("latency_ms"),
)
by_reward.orderBy("reward").show()
