"""Every table of the lake, defined once, as Arrow schemas: type, null rule, unit and meaning of each column.

The Spark form is derived from the Arrow form in `tables.lake`; a test holds the two equal. Large JSON columns come
last and carry no statistics. This module runs on workers and never imports pyspark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")

USAGE: Final = pa.struct(
    [
        pa.field("input_tokens", pa.int64()),
        pa.field("output_tokens", pa.int64()),
        pa.field("reasoning_tokens", pa.int64()),
        pa.field("cached_tokens", pa.int64()),
        pa.field("total_tokens", pa.int64()),
    ]
)


MEASURES: Final = pa.map_(pa.string(), pa.float64())


@dataclass(frozen=True, slots=True)
class Table:
    """One table: its name in the lake, its columns, its partition columns, and how many last columns are large.

    Delta keeps no statistics of the large ones.
    """

    name: str
    schema: pa.Schema
    partition_by: tuple[str, ...] = ()
    large: int = 0

    @property
    def columns(self) -> list[str]:
        """Column names in order."""
        return list(self.schema.names)


def _column(name: str, type_: pa.DataType, meaning: str, *, null: bool = True) -> pa.Field:
    return pa.field(name, type_, nullable=null, metadata={"comment": meaning})


def _key(name: str, meaning: str, type_: pa.DataType | None = None) -> pa.Field:
    return _column(name, type_ if type_ is not None else pa.string(), meaning, null=False)


BENCHMARKS: Final = Table(
    "benchmarks",
    pa.schema(
        [
            _key("benchmark", "name of the benchmark"),
            _key("version", "content fingerprint of its tasks"),
            _key("prepared_at", "when; the newest row of a benchmark is its current version", TIMESTAMP),
            _column("split", pa.string(), "dataset split"),
            _key("tasks", "rows of this version in `tasks`", pa.int64()),
            _key("shards", "shards of this version", pa.int32()),
            _key("duplicates", "tasks whose source row is byte-equal to an earlier one", pa.int64()),
            _column("gym_spark_version", pa.string(), "version that prepared it"),
            _key("manifest", "JSON: source, revision, sha256 per file, row count, prompt, fields kept and dropped"),
        ]
    ),
    large=1,
)

TASKS: Final = Table(
    "tasks",
    pa.schema(
        [
            _key("benchmark", "name of the benchmark"),
            _key("version", "content fingerprint of the benchmark's tasks"),
            _column("split", pa.string(), "dataset split"),
            _key("task_id", "stable id: given by the source, or digest of the source row and its occurrence"),
            _key("task_index", "position in the source, from 0", pa.int64()),
            _key("shard", "slice of the benchmark, from 0", pa.int32()),
            _key("fingerprint", "digest of responses_create_params and verifier_inputs"),
            _key("responses_create_params", "JSON: the request's `input` and what the task fixes besides"),
            _key("verifier_inputs", "JSON: what the verifier needs"),
            _key("metadata", "JSON: what neither needs"),
        ]
    ),
    partition_by=("benchmark", "version", "shard"),
    large=3,
)

RUNS: Final = Table(
    "runs",
    pa.schema(
        [
            _key("run_id", "name of the run"),
            _key("recorded_at", "when; the newest row of a run stands", TIMESTAMP),
            _key(
                "status",
                "running, finished, incomplete, budget_exhausted, stopped, interrupted or failed",
            ),
            _key("benchmark", "name of the benchmark"),
            _key("dataset_version", "content fingerprint of its tasks"),
            _column("model", pa.string(), "model name sent to the endpoint"),
            _key("identity", "digest of what can change a score"),
            _key("verification_id", "verification that the headline numbers name"),
            _key("planned_tasks", "tasks in the plan", pa.int64()),
            _key("planned_rollouts", "tasks in the plan times repeats", pa.int64()),
            _column("error", pa.string(), "why the run failed or was stopped, if it was"),
            _key("versions", "JSON: gym-spark, Spark, Delta, Python, verifier libraries, model server"),
            _key("spec", "JSON: the complete resolved specification, secrets as references"),
        ]
    ),
    large=2,
)

ROLLOUTS: Final = Table(
    "rollouts",
    pa.schema(
        [
            _key("run_id", "name of the run"),
            _key("shard", "shard of the task", pa.int32()),
            _key("task_id", "task"),
            _key("task_index", "position of the task in the source", pa.int64()),
            _key("rollout_index", "repeat, from 0", pa.int32()),
            _key("attempt", "execution of this rollout, from 1", pa.int32()),
            _key("state", "completed or failed"),
            _column("failure_kind", pa.string(), "short name of the failure; null when completed"),
            _column("failure_stage", pa.string(), "endpoint, harness or environment; null when completed"),
            _column("failure_terminal", pa.bool_(), "another attempt would fail alike; null when completed"),
            _column("exception_kind", pa.string(), "what cut a completed rollout short; null when nothing did"),
            _column("answer_state", pa.string(), "complete, truncated, reasoning_only, empty or filtered"),
            _column("usage", USAGE, "tokens over all model calls; null where unknown"),
            _key("model_calls", "model calls that were answered", pa.int32()),
            _key("requests", "HTTP requests sent, retries included", pa.int32()),
            _key("turns", "assistant turns", pa.int32()),
            _key("started_at", "when work on the rollout began", TIMESTAMP),
            _key("completed_at", "when its outcome was known", TIMESTAMP),
            _column("latency_ms", pa.float64(), "time of its answered requests, queue and back-off apart"),
            _column("queue_ms", pa.float64(), "time spent in our own queue"),
            _column("replica", pa.string(), "address that answered"),
            _column("measures", MEASURES, "further numbers of the rollout, such as usage without a column"),
            _column("environment_reward", pa.float64(), "reward taken inside the environment, if any"),
            _column("skills_ref", pa.string(), "skills directory and content hash"),
            _column("error", pa.string(), "message of the failure; null when completed"),
            _column("output_text", pa.string(), "the answer's text without reasoning; null when failed"),
            _column("response", pa.string(), "JSON: the last answer as a Responses API object"),
            _column("trajectory", pa.string(), "JSON: every model call and tool call in order"),
        ]
    ),
    # Not by shard as well: appends of parallel jobs do not conflict, and each commit would write a file per shard.
    partition_by=("run_id",),
    large=4,
)

INPUTS: Final = Table(
    "inputs",
    pa.schema(
        [
            _key("run_id", "name of the imported run; the plan of others is their tasks times repeats"),
            _key("task_id", "task"),
            _key("task_index", "number of the task, or its place among textual ids", pa.int64()),
            _key("rollout_index", "repeat", pa.int32()),
            _column("agent", pa.string(), "agent that the row names"),
            _column("run_key", pa.string(), "environment server, else agent: rows of one key are one run"),
            _column("label", pa.string(), "name of the run key among all of the run's"),
            _key("input", "JSON: the row without its numbers"),
        ]
    ),
    partition_by=("run_id",),
    large=1,
)

VERIFICATIONS: Final = Table(
    "verifications",
    pa.schema(
        [
            _key("run_id", "name of the run"),
            _key("verification_id", "one verifier configuration over one run"),
            _key("task_id", "task"),
            _key("rollout_index", "repeat, from 0", pa.int32()),
            _key("attempt", "execution of the rollout that was judged", pa.int32()),
            _key("verifier", "name of the verifier"),
            _key("verifier_digest", "digest of its name, parameters and library versions"),
            _key("state", "scored, judge_failed, verify_timeout, verifier_error, masked or not_scored"),
            _column("reward", pa.float64(), "the verdict; null unless scored"),
            _column("scores", MEASURES, "further named numbers; `reward`: as imported, where it was no plain number"),
            _key("verified_at", "when", TIMESTAMP),
            _column("unsafe", pa.bool_(), "true: forced, though the verifier needs more than what is stored"),
            _column("extracted_answer", pa.string(), "what the verifier took for the answer"),
            _column("detail", pa.string(), "JSON: evidence; the reason where not scored"),
        ]
    ),
    partition_by=("run_id", "verification_id"),
    large=2,
)

REVERIFICATIONS: Final = Table(
    "reverifications",
    pa.schema(
        [
            _key("run_id", "name of the run"),
            _key("verification_id", "the verification that was made or completed"),
            _key("recorded_at", "when it began", TIMESTAMP),
            _key("verifier", "JSON: name and parameters of the verifier"),
            _key("verifier_digest", "digest of its name, parameters and library versions"),
            _column("judge", pa.string(), "JSON: endpoint and model that judged; null: none"),
            _column("selection", pa.string(), "JSON: which rollouts were judged; null: all"),
            _key("unsafe", "the verdicts are marked unsafe", pa.bool_()),
            _key("versions", "JSON: versions of gym-spark, Spark and the libraries"),
        ]
    ),
)

TASK_PROFILES: Final = Table(
    "task_profiles",
    pa.schema(
        [
            _key("run_id", "name of the run"),
            _key("verification_id", "verification the numbers are taken from"),
            _key("task_id", "task"),
            _key("task_index", "position of the task in the source", pa.int64()),
            _key("planned", "rollouts planned", pa.int64()),
            _key("completed", "rollouts completed", pa.int64()),
            _key("n", "rollouts scored", pa.int64()),
            _key("passes", "scored rollouts with reward 1 (binary verdicts), or reward at or above 1", pa.int64()),
            _column("mean", pa.float64(), "mean reward over scored rollouts; null if none"),
            _column("strict_mean", pa.float64(), "sum of rewards divided by planned rollouts"),
            _column("variance", pa.float64(), "sample variance over scored rollouts; null below two"),
            _column("min", pa.float64(), "lowest reward of a scored rollout"),
            _column("max", pa.float64(), "highest reward of a scored rollout"),
        ]
    ),
    partition_by=("run_id", "verification_id"),
)

METRICS: Final = Table(
    "metrics",
    pa.schema(
        [
            _key("run_id", "name of the run"),
            _key("verification_id", "verification the number is taken from"),
            _key("name", "name of the metric"),
            _key(
                "denominator", "planned (unscored counts as 0), scored (finished only), completed, custom or measured"
            ),
            _column("label", pa.string(), "agent that a measured number is about; null: the whole run"),
            _column("value", pa.float64(), "null where it is undefined"),
            _column("se", pa.float64(), "standard error, clustered by task"),
            _column("ci_low", pa.float64(), "lower end of the 95 % interval"),
            _column("ci_high", pa.float64(), "upper end of the 95 % interval"),
            _key("n_tasks", "tasks it was computed over", pa.int64()),
            _key("n_rollouts", "rollouts it was computed over", pa.int64()),
            _column("reason", pa.string(), "why value or interval is null"),
        ]
    ),
    partition_by=("run_id", "verification_id"),
)

_ALL: Final = (BENCHMARKS, TASKS, RUNS, INPUTS, ROLLOUTS, VERIFICATIONS, REVERIFICATIONS, TASK_PROFILES, METRICS)
ALL: Final = {table.name: table for table in _ALL}
