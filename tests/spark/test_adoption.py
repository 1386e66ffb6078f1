"""Staged rollouts become rows of the table, each exactly once."""

from __future__ import annotations

from pathlib import Path

import pytest

from gym_spark.errors import ConfigError
from gym_spark.rollout.adoption import adopt_leftovers, adopt_parts
from gym_spark.rollout.claims import claimed
from gym_spark.rollout.place import forget_place, note_place, staging_of
from gym_spark.rollout.progress import Progress
from gym_spark.rollout.records import to_batch
from gym_spark.rollout.share import WHOLE, Share
from gym_spark.rollout.staging import JobBeat, Staged, Staging, WorkerStatus
from gym_spark.tables.lake import Lake
from gym_spark.tables.schemas import ROLLOUTS
from tests.spark.frames import RUN, Row, failure, rollout

#: A job without parts, for whom leftovers are adopted.
NOBODY = Staging("/nowhere/job0")


@pytest.fixture
def staging(lake: Lake) -> Staging:
    """Return the staging folder of one collect job of the run, in a lake that has its table."""
    lake.ensure(ROLLOUTS)
    return staging_of(lake, RUN).job("job1")


def stored(lake: Lake) -> list[tuple[str, int, int, str]]:
    """Return the key and the state of every stored rollout, sorted."""
    rows = lake.read(ROLLOUTS).select("task_id", "rollout_index", "attempt", "state").collect()
    return sorted(tuple(row) for row in rows)


def rows_of(task_id: str, count: int) -> list[Row]:
    """Return so many completed repeats of one task."""
    return [rollout(task_id, index) for index in range(count)]


def done(task_id: str, count: int) -> list[tuple[str, int, int, str]]:
    """Return what `stored` says of them."""
    return [(task_id, index, 1, "completed") for index in range(count)]


def test_parts_are_adopted_once_however_often(lake: Lake, staging: Staging) -> None:
    """A driver that died between commit and clean-up adopts the same parts again: no row is added."""
    staging.put_part(0, "0", to_batch(rows_of("x", 3)))
    staging.put_part(1, "0", to_batch([rollout("y"), failure("z")]))
    adopt_parts(lake, RUN, staging.parts(), WHOLE)
    wanted = [*done("x", 3), ("y", 0, 1, "completed"), ("z", 0, 1, "failed")]
    assert stored(lake) == wanted
    # Both again, and a later part with an old key and a new one: only the new one.
    staging.put_part(1, "1", to_batch([rollout("y"), rollout("z", attempt=2)]))
    assert len(staging.parts()) == 3
    adopt_parts(lake, RUN, staging.parts(), WHOLE)
    assert stored(lake) == [*wanted, ("z", 0, 2, "completed")]


def test_a_spark_task_that_ran_twice_gives_one_row_per_rollout(lake: Lake, staging: Staging) -> None:
    """Two parts with the same keys, whole rows of one of them: never two rows, never a mixture of both."""
    for text in ("first", "second"):
        staging.put_part(0, text, to_batch([rollout("x", index, output_text=text) for index in range(3)]))
    adopt_parts(lake, RUN, staging.parts(), WHOLE)
    rows = lake.read(ROLLOUTS).select("rollout_index", "output_text").collect()
    assert sorted(row["rollout_index"] for row in rows) == [0, 1, 2]
    assert len({row["output_text"] for row in rows}) == 1


def test_the_same_key_in_another_run_is_another_rollout(lake: Lake, staging: Staging) -> None:
    """What is stored of other runs has no say in what is adopted."""
    lake.append_rows(ROLLOUTS, [rollout("x", run_id="other")])
    staging.put_part(0, "0", to_batch([rollout("x")]))
    adopt_parts(lake, RUN, staging.parts(), WHOLE)
    assert sorted(row["run_id"] for row in lake.read(ROLLOUTS).collect()) == ["other", RUN]


def test_leftovers_of_earlier_jobs_are_adopted_and_their_folder_is_removed(lake: Lake, staging: Staging) -> None:
    """Parts of two jobs that were killed become rows; half-written files are no parts; a clean start is fine too."""
    adopt_leftovers(lake, RUN, NOBODY, WHOLE, print)
    staging.put_part(0, "0", to_batch(rows_of("x", 2)))
    staging.put_status(WorkerStatus(0, done=2))
    later = staging_of(lake, RUN).job("job2")
    later.put_part(0, "0", to_batch([rollout("x", 1), rollout("y")]))
    # As a kill in the middle of a write leaves them: hidden until they are whole.
    Path(staging.uri, ".p0-1.parquet").write_bytes(b"PAR1 and no more")
    Path(staging.uri, ".status-00001.json").write_text('{"partition": 1, "do')
    neighbour = Staging(f"{staging_of(lake, 'other').uri}/job1")
    neighbour.put_part(0, "0", to_batch([rollout("x", run_id="other")]))

    adopt_leftovers(lake, RUN, NOBODY, WHOLE, print)
    assert stored(lake) == [*done("x", 2), *done("y", 1)]
    assert staging_of(lake, RUN).jobs() == []
    assert len(neighbour.parts()) == 1, "another run's parts are not this run's to take"


def test_half_written_files_are_neither_parts_nor_statuses(tmp_path: Path) -> None:
    """A name that starts with a dot is still being written."""
    staging = Staging(str(tmp_path / "job"))
    assert (staging.parts(), staging.statuses()) == ([], [])
    staging.put_part(0, "whole", to_batch([rollout("x")]))
    staging.put_status(WorkerStatus(0, done=1))
    Path(staging.uri, ".half.parquet").write_bytes(b"PAR1")
    Path(staging.uri, ".status-00001.json").write_text("{")
    assert [Path(part).name for part in staging.parts()] == ["p00000-whole.parquet"]
    assert [status.done for status in staging.statuses()] == [1]


def test_progress_is_the_sum_of_the_workers_newest_statuses(tmp_path: Path) -> None:
    """Each worker has one status, its newest; counts add up, failures by kind, the first failure is any worker's."""
    staging = Staging(str(tmp_path / "job"))
    staging.put_status(WorkerStatus(0, done=1, requests=1))
    staging.put_status(WorkerStatus(0, done=5, requests=7, retries=2, in_flight=3, output_tokens=50))
    failures = {"timeout": 2, "bad_request": 1}
    staging.put_status(WorkerStatus(1, done=4, failures=failures, requests=6, first_failure="timeout: no answer"))
    staging.put_status(WorkerStatus(2, done=1, failures={"timeout": 1}, in_flight=1, retries=1, output_tokens=5))
    assert Progress.of(staging.statuses(), 20, 1.5) == Progress(
        total=20,
        elapsed_s=1.5,
        done=10,
        in_flight=4,
        requests=13,
        retries=3,
        output_tokens=55,
        failures={"timeout": 3, "bad_request": 1},
        first_failure="timeout: no answer",
    )


def test_a_share_adopts_its_own_shards_of_a_dead_job_and_leaves_the_rest(lake: Lake, staging: Staging) -> None:
    """A job for the whole run died; of two jobs that go on, each takes its shards; the whole run's job cleans up."""
    staging.put_part(0, "0", to_batch([rollout("even", shard=0), rollout("odd", shard=1), rollout("even2", shard=2)]))
    adopt_leftovers(lake, RUN, NOBODY, Share(1, 2), print)
    assert [key for key, *_ in stored(lake)] == ["even", "even2"]
    assert staging.parts(), "the other shards are still to be taken"
    adopt_leftovers(lake, RUN, NOBODY, Share(2, 2), print)
    adopt_leftovers(lake, RUN, NOBODY, Share(2, 2), print)
    assert [key for key, *_ in stored(lake)] == ["even", "even2", "odd"]
    adopt_leftovers(lake, RUN, NOBODY, WHOLE, print)
    assert len(stored(lake)) == 3
    assert not staging.parts()


def test_a_live_job_keeps_its_share_to_itself(lake: Lake, staging: Staging) -> None:
    """A second job for the same shards is told who works on them; one for other shards goes on; a dead one is none."""
    run = staging_of(lake, RUN)
    staging.put_part(0, "0", to_batch([rollout("x", shard=1)]))
    beat = JobBeat(share="2/2", started_at=0.0)
    staging.beat(beat)
    for share in (Share(2, 2), WHOLE):
        with pytest.raises(ConfigError, match=r"another job \(shards 2/2, process \d+"), claimed(run, share):
            pytest.fail("the share is taken")
    with claimed(run, Share(1, 2)) as (own, _):
        adopt_leftovers(lake, RUN, own, Share(1, 2), print)
    assert stored(lake) == []
    assert run.jobs() == [staging], "claims that came to nothing leave nothing"
    beat.pid = 2**22 + 1  # above the largest process number
    staging.beat(beat)
    with claimed(run, Share(2, 2)) as (own, _):
        adopt_leftovers(lake, RUN, own, Share(2, 2), print)
    assert [key for key, *_ in stored(lake)] == ["x"]
    assert run.jobs() == []


def test_of_two_jobs_that_start_at_once_the_later_one_leaves(lake: Lake) -> None:
    """And a job that failed gives its claim up at once, though its process lives on; its parts are kept."""
    run = staging_of(lake, RUN)
    with claimed(run, WHOLE) as (first, _):
        with pytest.raises(ConfigError, match="another job"), claimed(run, WHOLE):
            pytest.fail("the run is taken")
        first.put_part(0, "0", to_batch([rollout("x")]))
    with claimed(run, WHOLE):
        assert first in run.jobs()
        assert len(first.parts()) == 1


def test_a_retried_spark_task_knows_what_its_earlier_try_staged(tmp_path: Path) -> None:
    """Keys and requests of its own partition's parts, and of no other's."""
    staging = Staging(str(tmp_path / "job"))
    staging.put_part(0, "a-0", to_batch(rows_of("x", 2)))
    staging.put_part(0, "b-0", to_batch([rollout("y", attempt=2)]))
    staging.put_part(1, "a-0", to_batch([rollout("z")]))
    keys = frozenset({("x", 0, 1), ("x", 1, 1), ("y", 0, 2)})
    assert staging.staged(0) == Staged(keys, requests=3, input_tokens=30, output_tokens=15)
    assert staging.staged(2) == Staged()


def test_a_run_that_was_staged_elsewhere_is_not_paid_for_again(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process without the variable would find neither the claim nor what is left; it is told which folder to name."""
    monkeypatch.setenv("GYM_SPARK_STAGING", str(tmp_path / "elsewhere"))
    staging_of(lake, RUN).job("dead").put_json("job.json", {"share": "1/1", "started_at": 0.0})
    note_place(lake, RUN)
    forget_place(lake, RUN)
    monkeypatch.delenv("GYM_SPARK_STAGING")
    with pytest.raises(ConfigError, match="set GYM_SPARK_STAGING to that folder"):
        staging_of(lake, RUN)
    monkeypatch.setenv("GYM_SPARK_STAGING", str(tmp_path / "elsewhere"))
    staging_of(lake, RUN).job("dead").remove()
    forget_place(lake, RUN)
    monkeypatch.delenv("GYM_SPARK_STAGING")
    assert staging_of(lake, RUN).uri == f"{lake.root}/_staging/{RUN}"
    for name in ("[x]", "a*b"):
        monkeypatch.setenv("GYM_SPARK_STAGING", str(tmp_path / name))
        with pytest.raises(ConfigError, match=r"GYM_SPARK_STAGING '.*' holds"):
            staging_of(lake, RUN)
