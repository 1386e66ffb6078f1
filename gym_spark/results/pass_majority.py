"""pass@k, the average of k, and the majority of k, over tasks with any number of rollouts.

Each is a mean over tasks, so partitions of whole tasks yield sums (:func:`partial_sums`) that add up (:func:`merge`);
:func:`finish` divides. Nothing loops over rows or tasks: position k of all tasks is one numpy step.

A score that is not finite makes every number that it enters NaN or infinite.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gym_spark.results.describe import Bools, Floats, Ints

#: Rows of a partial's arrays: a sum over tasks, or the number of tasks in it. The first four end with a task's last
#: rollout; in the others a shorter task goes on with what its rollouts amount to.
_ROWS: Final = (
    "pass",
    "pass_tasks",
    "position",
    "position_tasks",
    "average",
    "average_tasks",
    "deviation",
    "deviation_tasks",
    "majority",
)
_ENDING: Final = 4
#: The score that answers add: 1 without one.
NO_ANSWER: Final = "no_answer"

Metrics = dict[str, float | dict[str, list[float]]]


class Score(NamedTuple):
    """One score of each rollout: float64 values, and which rollouts have it."""

    values: Floats
    present: Bools


class Answers(NamedTuple):
    """The answer of each rollout: int64 codes, equal for equal answers of a task, and which rollouts have one."""

    codes: Ints
    present: Bools


@dataclass(frozen=True, slots=True)
class Partial:
    """Sums over some of the tasks.

    Attributes:
        tasks: Number of tasks.
        longest: K, the most rollouts of a task.
        voted: Whether there were answers to vote on.
        sums: By score name, float64 of shape (9, K): column k - 1 is about the first k rollouts.
    """

    tasks: int
    longest: int
    voted: bool
    sums: dict[str, Floats]

    def without_votes(self) -> Partial:
        """Return the same where no rollout has an answer: there is nothing to vote on, and no answer to miss."""
        sums = {name: own for name, own in self.sums.items() if name != NO_ANSWER}
        return replace(self, voted=False, sums=sums)


def partial_sums(
    tasks: npt.NDArray[np.integer],
    order: npt.NDArray[np.integer],
    scores: Mapping[str, Score],
    answers: Answers | None = None,
) -> Partial:
    """Sum up whole tasks.

    Args:
        tasks: Task of each rollout, any integers.
        order: What puts the rollouts of a task in order.
        scores: Scores by name; booleans as 0 and 1.
        answers: The answers, if there is a majority to be found. They add the score `no_answer`: 1 without answer.

    Returns:
        The sums of these tasks.
    """
    rows = np.lexsort((order, tasks))
    by_name = {name: Score(score.values[rows], score.present[rows]) for name, score in scores.items()}
    voters = None
    if answers is not None:
        voters = Answers(answers.codes[rows], answers.present[rows])
        by_name[NO_ANSWER] = Score((~voters.present).astype(np.float64), np.ones(len(rows), bool))
    ordered = tasks[rows]
    layout = _Layout.of(ordered)
    with np.errstate(invalid="ignore", over="ignore"):
        sums = {name: _sums(ordered, layout, score, voters) for name, score in by_name.items()}
    return Partial(len(layout.starts), layout.longest, answers is not None, sums)


def merge(partials: Iterable[Partial]) -> Partial:
    """Add the sums of disjoint sets of tasks; nothing to add gives no tasks."""
    return reduce(_add, partials, Partial(0, 0, False, {}))


def finish(partial: Partial) -> Metrics:
    """Return the metrics, in percent, in NeMo Gym's order.

    - ``pass@k/name``: mean over the tasks with at least k values: 1 - C(wrong, k) / C(n, k) for a task whose n values
      are all 0 or 1 (Chen et al. 2021, "Evaluating Large Language Models Trained on Code", §2.1), else the maximum of
      its first k values. Absent where no task has k values.
    - ``pass@1[avg-of-k]/name``: mean over tasks of the mean of the values among the first k rollouts.
    - ``majority@k/name``, with answers: the mean score of the most frequent (answer, score) pairs among the first k
      rollouts, 0 for a task without any; mean over all tasks.
    - ``per_sample_aggregate``: for each name the mean of each rollout position that has values.
    - ``pass@1[avg-of-k]/name/std_dev_across_runs`` and ``std_err_across_runs``: spread of the first k of that list.
    """
    metrics: Metrics = {}
    if not partial.tasks:
        return metrics
    for k in range(1, partial.longest + 1):
        for name, sums in sorted(partial.sums.items()):
            column = dict(zip(_ROWS, sums[:, k - 1].tolist(), strict=True))
            if column["pass_tasks"]:
                metrics[f"pass@{k}/{name}"] = 100.0 * column["pass"] / column["pass_tasks"]
            if column["average_tasks"]:
                metrics[f"pass@1[avg-of-{k}]/{name}"] = 100.0 * column["average"] / column["average_tasks"]
            if partial.voted:
                metrics[f"majority@{k}/{name}"] = 100.0 * column["majority"] / partial.tasks
    samples = {name: _per_sample(sums) for name, sums in sorted(partial.sums.items())}
    metrics["per_sample_aggregate"] = samples
    for k in range(2, partial.longest + 1):
        for name, values in samples.items():
            first = values[:k]
            if len(first) >= 2:
                deviation = _deviation(first)
                metrics[f"pass@1[avg-of-{k}]/{name}/std_dev_across_runs"] = deviation
                metrics[f"pass@1[avg-of-{k}]/{name}/std_err_across_runs"] = deviation / math.sqrt(len(first))
    return metrics


def mean_sample_deviation(partial: Partial) -> dict[str, float]:
    """Return ``pass@1[avg-of-k]/name/avg_sample_std_dev``: how much the rollouts of one task differ.

    The mean, over tasks with at least two values among their first k rollouts, of their sample deviation; a fraction,
    not percent.
    """
    deviation, tasks = _ROWS.index("deviation"), _ROWS.index("deviation_tasks")
    return {
        f"pass@1[avg-of-{k}]/{name}/avg_sample_std_dev": float(sums[deviation, k - 1] / sums[tasks, k - 1])
        for k in range(2, partial.longest + 1)
        for name, sums in sorted(partial.sums.items())
        if sums[tasks, k - 1]
    }


def subset_sums(
    tasks: npt.NDArray[np.integer],
    order: npt.NDArray[np.integer],
    scores: Mapping[str, Score],
    answers: Answers | None,
    subsets: Answers,
) -> dict[int, Partial]:
    """Sum up whole tasks by subset.

    Args:
        tasks: Task of each rollout.
        order: What puts the rollouts of a task in order.
        scores: Scores by name.
        answers: The answers, or None.
        subsets: Code of the subset that each rollout names, and whether it names one. The first rollout of a task that
            does decides; a task without any is in no subset.

    Returns:
        Sums by subset code, which :func:`merge` adds per code.
    """
    naming = np.flatnonzero(subsets.present)
    naming = naming[np.lexsort((order[naming], tasks[naming]))]
    named, first = np.unique(tasks[naming], return_index=True)
    place = np.searchsorted(named, tasks)
    inside = np.isin(tasks, named)
    of_rollout = np.zeros(len(tasks), np.int64)
    of_rollout[inside] = subsets.codes[naming[first]][place[inside]]
    sums = {}
    for code in np.unique(of_rollout[inside]).tolist():
        chosen = inside & (of_rollout == code)
        sums[code] = partial_sums(
            tasks[chosen],
            order[chosen],
            {name: Score(score.values[chosen], score.present[chosen]) for name, score in scores.items()},
            None if answers is None else Answers(answers.codes[chosen], answers.present[chosen]),
        )
    return sums


def finish_subsets(partials: Mapping[str, Partial]) -> Metrics:
    """Return ``subset/metric`` for every metric of every subset but the lists per sample."""
    return {
        f"{subset}/{name}": value
        for subset, partial in partials.items()
        for name, value in finish(partial).items()
        if name != "per_sample_aggregate"
    }


def highest_k(metrics: Mapping[str, object], pattern: str, *, without: Collection[str] = ()) -> dict[str, object]:
    """Return the metrics of the largest k.

    Args:
        metrics: Metrics by name.
        pattern: The name's part before the score, such as ``pass@{k}`` or ``pass@1[avg-of-{k}]``.
        without: Scores to leave out.

    Returns:
        ``pattern/score`` for each score at the largest k that occurs; no companions such as ``/std_dev_across_runs``.
    """
    form = re.compile(re.escape(pattern).replace(re.escape("{k}"), r"(\d+)") + r"/([^/]+)")
    found = [
        (int(match[1]), name)
        for name in metrics
        if (match := form.fullmatch(name)) is not None and match[2] not in without
    ]
    largest = max((k for k, _ in found), default=0)
    return {name: metrics[name] for k, name in found if k == largest}


@dataclass(frozen=True, slots=True)
class _Layout:
    """Rollouts in task order, tasks from the longest to the shortest: position k concerns the first tasks only."""

    starts: Ints
    sizes: Ints

    @classmethod
    def of(cls, ordered_tasks: npt.NDArray[np.integer]) -> _Layout:
        changes = np.flatnonzero(ordered_tasks[1:] != ordered_tasks[:-1]) + 1
        starts = np.concatenate([[0], changes]) if len(ordered_tasks) else np.zeros(0, np.int64)
        sizes = np.diff(np.append(starts, len(ordered_tasks)))
        longest_first = np.argsort(-sizes, kind="stable")
        return cls(starts[longest_first], sizes[longest_first])

    @property
    def longest(self) -> int:
        return int(self.sizes[0]) if len(self.sizes) else 0

    def positions(self) -> Iterator[tuple[int, slice, Ints]]:
        """Yield (position from 0, the tasks that have it, its row in each of them)."""
        for position in range(self.longest):
            active = int(np.searchsorted(-self.sizes, -position, side="left"))
            yield position, slice(0, active), self.starts[:active] + position


def _sums(ordered_tasks: npt.NDArray[np.integer], layout: _Layout, score: Score, answers: Answers | None) -> Floats:
    sums = np.zeros((len(_ROWS), layout.longest))
    _add_passes(sums, ordered_tasks[score.present], score.values[score.present])
    running = _Running(len(layout.starts))
    turns = None if answers is None else _turns(ordered_tasks, score, answers)
    ended, tasks = np.zeros(len(_ROWS) - _ENDING), len(layout.starts)
    for position, active, rows in layout.positions():
        # What a task amounts to no longer changes after its last rollout.
        ended += running.totals(slice(active.stop, tasks))
        tasks = active.stop
        values, present = score.values[rows], score.present[rows]
        running.take(active, values, present)
        if turns is not None:
            running.vote(active, values, turns[rows])
        sums[2:_ENDING, position] = values[present].sum(), np.count_nonzero(present)
        sums[_ENDING:, position] = ended + running.totals(active)
    return sums


def _add_passes(sums: Floats, tasks: npt.NDArray[np.integer], values: Floats) -> None:
    layout = _Layout.of(tasks)
    if not layout.longest:
        return
    in_order = np.argsort(layout.starts)
    binary, wrong = np.zeros(len(layout.starts), bool), np.zeros(len(layout.starts))
    binary[in_order] = np.logical_and.reduceat((values == 0) | (values == 1), layout.starts[in_order])
    wrong[in_order] = np.add.reduceat((values == 0).astype(np.float64), layout.starts[in_order])
    # C(wrong, k) / C(n, k), one factor for each k, without factorials.
    all_wrong, best = np.ones(len(layout.starts)), np.full(len(layout.starts), -np.inf)
    for position, active, rows in layout.positions():
        all_wrong[active] *= np.maximum(wrong[active] - position, 0.0) / (layout.sizes[active] - position)
        best[active] = np.maximum(best[active], values[rows])
        sums[0, position] = np.where(binary[active], 1.0 - all_wrong[active], best[active]).sum()
        sums[1, position] = active.stop


class _Running:
    """What the rollouts so far amount to, for each task."""

    def __init__(self, tasks: int) -> None:
        self._count = np.zeros(tasks, np.int64)
        self._mean = np.zeros(tasks)
        self._squares = np.zeros(tasks)
        self._votes = np.zeros(tasks, np.int64)
        self._leaders = np.zeros(tasks, np.int64)
        self._leading = np.zeros(tasks)

    def take(self, active: slice, values: Floats, present: Bools) -> None:
        """Add one rollout's score to mean and squared deviations (Welford 1962)."""
        self._count[active] += present
        step = np.where(present, values - self._mean[active], 0.0)
        self._mean[active] += step / np.maximum(self._count[active], 1)
        self._squares[active] += np.where(present, step * (values - self._mean[active]), 0.0)

    def vote(self, active: slice, values: Floats, turns: Ints) -> None:
        """Count one rollout's vote.

        Args:
            active: The tasks.
            values: The scores.
            turns: How many votes its pair has with this one; 0 for no vote.
        """
        voted = turns > 0
        ahead = voted & (turns > self._votes[active])
        level = voted & (turns == self._votes[active])
        self._votes[active] = np.where(ahead, turns, self._votes[active])
        self._leaders[active] = np.where(ahead, 1, self._leaders[active] + level)
        self._leading[active] = np.where(ahead, values, self._leading[active] + np.where(level, values, 0.0))

    def totals(self, tasks: slice) -> Floats:
        """Sum over some tasks, in the order of the rows that go on after a task's end."""
        count, leaders = self._count[tasks], self._leaders[tasks]
        some, several = count > 0, count > 1
        deviations = np.sqrt(self._squares[tasks][several] / (count[several] - 1))
        return np.array(
            [
                self._mean[tasks][some].sum(),
                np.count_nonzero(some),
                deviations.sum(),
                np.count_nonzero(several),
                (self._leading[tasks] / np.maximum(leaders, 1)).sum(),
            ]
        )


def _turns(ordered_tasks: npt.NDArray[np.integer], score: Score, answers: Answers) -> Ints:
    """Return how often each rollout's (answer, score) pair has occurred in its task so far, 0 without such a pair."""
    turns = np.zeros(len(ordered_tasks), np.int64)
    voting = np.flatnonzero(answers.present & score.present)
    if len(voting):
        columns = (score.values[voting], answers.codes[voting], ordered_tasks[voting])
        order = np.lexsort(columns)  # stable: rollouts of a pair stay in order
        new = np.ones(len(voting), bool)
        new[1:] = np.any([column[order][1:] != column[order][:-1] for column in columns], axis=0)
        first = np.flatnonzero(new)
        turns[voting[order]] = np.arange(len(voting)) - np.repeat(first, np.diff(np.append(first, len(voting)))) + 1
    return turns


def _add(one: Partial, other: Partial) -> Partial:
    longest = max(one.longest, other.longest)
    nothing = np.zeros((len(_ROWS), 0))
    sums = {
        name: _stretched(one.sums.get(name, nothing), longest) + _stretched(other.sums.get(name, nothing), longest)
        for name in {**one.sums, **other.sums}
    }
    return Partial(one.tasks + other.tasks, longest, one.voted or other.voted, sums)


def _stretched(sums: Floats, longest: int) -> Floats:
    stretched = np.zeros((len(_ROWS), longest))
    known = sums.shape[1]
    stretched[:, :known] = sums
    if known:
        stretched[_ENDING:, known:] = sums[_ENDING:, -1:]
    return stretched


def _per_sample(sums: Floats) -> list[float]:
    total, tasks = sums[_ROWS.index("position")], sums[_ROWS.index("position_tasks")]
    found = tasks > 0
    with np.errstate(over="ignore", invalid="ignore"):
        per_sample: list[float] = (100.0 * total[found] / tasks[found]).tolist()
    return per_sample


def _deviation(values: list[float]) -> float:
    if min(values) == max(values):
        return 0.0  # exactly, where rounding would leave a rest
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.std(values, ddof=1))
