"""pass@k, averages and majorities, against a plain reading of their definitions."""

import math
import statistics
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_spark.results.pass_majority import (
    Answers,
    Partial,
    Score,
    finish,
    finish_subsets,
    highest_k,
    mean_sample_deviation,
    merge,
    partial_sums,
    subset_sums,
)

#: Scores that are often binary, sometimes not, sometimes absent.
SCORES = st.one_of(st.none(), st.sampled_from([0.0, 1.0, 1.0]), st.sampled_from([0.0, 0.5, -2.0, 0.1]))
ROLLOUTS = st.lists(st.tuples(SCORES, st.none() | st.integers(0, 2)), min_size=1, max_size=5)
TASKS = st.lists(ROLLOUTS, max_size=8)


def columns(tasks, seed=0):
    """Columns of rollouts in random order: tasks, order, scores, answers."""
    rows = [
        (task, position, score, answer)
        for task, rollouts in enumerate(tasks)
        for position, (score, answer) in enumerate(rollouts)
    ]
    rows = [rows[i] for i in np.random.default_rng(seed).permutation(len(rows))]
    number, present = (lambda x: 0 if x is None else x), (lambda x: x is not None)
    scores = Score(np.array([float(number(r[2])) for r in rows]), np.array([present(r[2]) for r in rows], bool))
    answers = Answers(np.array([number(r[3]) for r in rows], np.int64), np.array([present(r[3]) for r in rows], bool))
    return (
        np.array([r[0] for r in rows], np.int64),
        np.array([r[1] for r in rows], np.int64),
        {"accuracy": scores},
        answers,
    )


def metrics_of(tasks):
    return finish(partial_sums(*columns(tasks)))


def scored(*tasks):
    """Tasks of scores alone."""
    return [[(score, None) for score in rollouts] for rollouts in tasks]


def plain_pass(values, k):
    if set(values) <= {0.0, 1.0}:
        wrong = values.count(0.0)
        return float(1 - Fraction(math.comb(wrong, k), math.comb(len(values), k)))
    return max(values[:k])


def plain_majority(rollouts):
    pairs = Counter((answer, score) for score, answer in rollouts if answer is not None and score is not None)
    top = max(pairs.values(), default=0)
    return statistics.fmean(score for (_, score), count in pairs.items() if count == top) if pairs else 0.0


def plain(tasks):
    """The definitions, one task after the other, for the score `accuracy`."""
    found = {}
    longest = max(map(len, tasks), default=0)
    for k in range(1, longest + 1):
        values = [[score for score, _ in rollouts if score is not None] for rollouts in tasks]
        passes = [plain_pass(own, k) for own in values if len(own) >= k]
        firsts = [[score for score, _ in rollouts[:k] if score is not None] for rollouts in tasks]
        averages = [statistics.fmean(own) for own in firsts if own]
        deviations = [statistics.stdev(own) for own in firsts if len(own) > 1]
        found |= {f"pass@{k}/accuracy": 100 * statistics.fmean(passes)} if passes else {}
        found |= {f"pass@1[avg-of-{k}]/accuracy": 100 * statistics.fmean(averages)} if averages else {}
        found[f"majority@{k}/accuracy"] = 100 * statistics.fmean(plain_majority(rollouts[:k]) for rollouts in tasks)
        if deviations and k > 1:
            found[f"pass@1[avg-of-{k}]/accuracy/avg_sample_std_dev"] = statistics.fmean(deviations)
    return found


def close(actual, expected):
    return actual.keys() == expected.keys() and all(
        actual[name] == pytest.approx(expected[name], rel=1e-9, abs=1e-9) for name in expected
    )


def flat(metrics):
    """The same with each list's items under names of their own."""
    lists = metrics.pop("per_sample_aggregate", {})
    return metrics | {f"{name}[{i}]": value for name, values in lists.items() for i, value in enumerate(values)}


@settings(deadline=None)
@given(tasks=TASKS, seed=st.integers(0, 5))
def test_the_numbers_are_those_of_the_definitions(tasks, seed):
    partial = partial_sums(*columns(tasks, seed))
    found = {
        name: value
        for name, value in (finish(partial) | mean_sample_deviation(partial)).items()
        if name.split("/")[1:2] == ["accuracy"] and "across_runs" not in name
    }
    assert close(found, plain(tasks))


@settings(deadline=None)
@given(tasks=TASKS, parts=st.integers(1, 7))
def test_partials_over_any_split_of_the_tasks_equal_the_whole(tasks, parts):
    by_row, order, scores, answers = columns(tasks)
    whole = partial_sums(by_row, order, scores, answers)
    split = merge(
        partial_sums(
            by_row[chosen],
            order[chosen],
            {name: Score(score.values[chosen], score.present[chosen]) for name, score in scores.items()},
            Answers(answers.codes[chosen], answers.present[chosen]),
        )
        for part in range(parts)
        for chosen in [(by_row * 5 + 1) % parts == part]
    )
    assert (split.tasks, split.longest) == (whole.tasks, whole.longest)
    assert close(flat(finish(split)), flat(finish(whole)))
    assert close(mean_sample_deviation(split), mean_sample_deviation(whole))


def test_pass_at_k_hand_computed():
    found = metrics_of(scored([1, 0, 0, 0], [0, 0]))
    # 1 - C(3, k) / C(4, k) and, up to k = 2, 0
    assert [found[f"pass@{k}/accuracy"] for k in (1, 2, 3, 4)] == pytest.approx([12.5, 25.0, 75.0, 100.0])
    # the second task goes on with its two rollouts
    assert [found[f"pass@1[avg-of-{k}]/accuracy"] for k in (1, 4)] == pytest.approx([50.0, 12.5])


def test_scores_between_0_and_1_count_with_the_best_of_the_first_k():
    found = metrics_of(scored([0.2, 0.9, 0.5]))
    assert [found[f"pass@{k}/accuracy"] for k in (1, 2, 3)] == pytest.approx([20.0, 90.0, 90.0])


def test_tied_majorities_share_and_a_contradicting_judge_splits_an_answer():
    rollouts = [(1.0, 7), (0.0, 8), (0.0, 7), (1.0, 7), (0.0, 8)]
    found = metrics_of([rollouts])
    # 7 right | and 8 wrong | and 7 wrong | 7 right twice | tied with 8 wrong twice
    expected = [100.0, 50.0, 100.0 / 3, 100.0, 50.0]
    assert [found[f"majority@{k}/accuracy"] for k in range(1, 6)] == pytest.approx(expected)
    assert found["majority@5/no_answer"] == 0.0


def test_rollouts_without_answer_score_no_answer_and_do_not_vote():
    found = metrics_of([[(1.0, None), (0.0, 3)], [(1.0, None)]])
    assert found["majority@1/accuracy"] == 0.0
    assert found["pass@1[avg-of-1]/no_answer"] == 100.0
    assert found["pass@1/no_answer"] == pytest.approx(75.0)


def test_without_answers_there_is_no_majority():
    tasks, order, scores, _ = columns(scored([1.0, 0.0]))
    found = finish(partial_sums(tasks, order, scores))
    assert not [name for name in found if "majority" in name or "no_answer" in name]


def test_spread_across_runs_is_that_of_the_positions():
    found = metrics_of(scored([1, 0, 1], [1, 0], [0, 1]))
    assert found["per_sample_aggregate"]["accuracy"] == pytest.approx([200 / 3, 100 / 3, 100.0])
    spread = statistics.stdev([200 / 3, 100 / 3, 100.0])
    assert found["pass@1[avg-of-3]/accuracy/std_dev_across_runs"] == pytest.approx(spread)
    assert found["pass@1[avg-of-3]/accuracy/std_err_across_runs"] == pytest.approx(spread / math.sqrt(3))
    assert "pass@1[avg-of-1]/accuracy/std_dev_across_runs" not in found


def test_positions_without_any_score_are_skipped():
    found = metrics_of(scored([1.0, None, 0.0]))
    assert found["per_sample_aggregate"]["accuracy"] == [100.0, 0.0]
    assert "pass@3/accuracy" not in found
    assert found["pass@1[avg-of-3]/accuracy"] == 50.0


def test_a_score_that_only_some_partitions_have():
    one = partial_sums(*columns(scored([1.0]))[:2], {"a": Score(np.ones(1), np.ones(1, bool))})
    other = partial_sums(*columns(scored([1.0, 1.0]))[:2], {"b": Score(np.zeros(2), np.ones(2, bool))})
    found = finish(merge([one, other]))
    assert (found["pass@1/a"], found["pass@1/b"], found["pass@1[avg-of-2]/a"]) == (100.0, 0.0, 100.0)


def test_equal_early_rollouts_have_exactly_no_deviation():
    tasks, order, scores, answers = columns(scored([0.1, 0.1, 0.1, 5e9]))
    found = mean_sample_deviation(partial_sums(tasks, order, scores, answers))
    assert found["pass@1[avg-of-3]/accuracy/avg_sample_std_dev"] == 0.0
    assert found["pass@1[avg-of-4]/accuracy/avg_sample_std_dev"] == pytest.approx(2.5e9)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_score_that_is_not_finite_shows_in_what_it_enters(bad):
    found = metrics_of(scored([1.0, bad], [1.0, 0.0]))
    assert found["pass@1[avg-of-1]/accuracy"] == 100.0
    assert not math.isfinite(found["pass@1[avg-of-2]/accuracy"])
    assert not math.isfinite(found["pass@2/accuracy"])


def test_no_tasks_have_no_metrics():
    assert metrics_of([]) == {}
    assert merge([]) == Partial(0, 0, False, {})
    assert finish(merge([])) == {}


def test_subsets_are_named_by_a_tasks_first_rollout_that_names_one():
    tasks, order = np.array([0, 0, 1, 1, 2]), np.array([0, 1, 1, 0, 0])
    scores = {"accuracy": Score(np.array([1.0, 0.0, 0.0, 0.0, 1.0]), np.ones(5, bool))}
    subsets = Answers(np.array([9, 4, 4, 5, 9]), np.array([False, True, True, True, False]))
    found = subset_sums(tasks, order, scores, None, subsets)
    assert {code: partial.tasks for code, partial in found.items()} == {4: 1, 5: 1}
    metrics = finish_subsets({"easy": found[4], "hard": found[5]})
    assert (metrics["easy/pass@1/accuracy"], metrics["hard/pass@2/accuracy"]) == (50.0, 0.0)
    assert not [name for name in metrics if "per_sample" in name]


def test_subset_partials_add_up_like_the_others():
    tasks, order, scores, answers = columns(scored([1.0, 0.0], [0.0], [1.0], [1.0]))
    subsets = Answers(tasks % 2, np.ones(len(tasks), bool))
    whole = subset_sums(tasks, order, scores, answers, subsets)
    assert {code: finish(partial)["pass@1/accuracy"] for code, partial in whole.items()} == {0: 75.0, 1: 50.0}


def test_the_highest_k_leaves_companions_and_named_scores_out():
    metrics = {f"pass@1[avg-of-{k}]/{name}": k for k in (9, 10) for name in ("a", "b", "a/std_dev_across_runs")}
    assert highest_k(metrics | {"pass@11/a": 1}, "pass@1[avg-of-{k}]", without=["b"]) == {"pass@1[avg-of-10]/a": 10}
    assert highest_k(metrics, "majority@{k}") == {}
