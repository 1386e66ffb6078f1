"""NeMo Gym's rows: strict lines, odd shapes, names of runs, refusals, imputation and resume."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_spark.errors import ConfigError
from gym_spark.interchange.gym.checks import check_keys, check_unique
from gym_spark.interchange.gym.imputation import count_as_zero
from gym_spark.interchange.gym.inputs import InputRows
from gym_spark.interchange.gym.jsonl import parse_line, read_lines, torn_bytes
from gym_spark.interchange.gym.labels import is_fan_out, label_runs, label_with_masked
from gym_spark.interchange.gym.resume import plan_resume
from gym_spark.interchange.gym.rows import answer_text, input_row, key_order, result_row, row_key
from gym_spark.interchange.gym.stored import measures_of
from tests.corpus import differences


def row(task=0, repeat=0, **fields):
    return {"_ng_task_index": task, "_ng_rollout_index": repeat, "agent_ref": {"name": "a"}, **fields}


def read(**fields):
    return result_row(row(**fields), "f:1")


def test_a_torn_line_is_measured_however_long_it_is(tmp_path):
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(b'{"a": 1}\n' + b'{"a": "' + b"x" * 3_000_000)
    assert torn_bytes(path) == 3_000_007
    path.write_bytes(b'{"a": "' + b"x" * 3_000_000)
    assert torn_bytes(path) == 3_000_007


# input rows


def test_input_rows_come_back_in_the_order_of_keys_as_they_were():
    given = [row(2, 0, text="é\n", number=0.1), row("b", 0, agent_ref=None), row(1, 1, _ng_environment_server="s")]
    with InputRows() as inputs:
        for number, one in enumerate(given, start=1):
            inputs.add(row_key(one, "f"), one, f"f:{number}")
        with pytest.raises(ConfigError, match=r"^f:9: 'agent_ref' is a JSON list"):
            inputs.add((3, 0), row(3, 0, agent_ref=[]), "f:9")
        inputs.sort()
        expected = [((1, 1), ("s", "a"), given[2]), ((2, 0), ("a", "a"), given[0]), (("b", 0), (None, None), given[1])]
        assert list(inputs.rows()) == expected
        assert list(inputs.rows()) == expected
        assert (len(inputs), inputs.all_keys()) == (3, [(1, 1), (2, 0), ("b", 0)])


# lines


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"a": NaN}', "not strict JSON"),
        (b'{"a": -Infinity}', "not strict JSON"),
        (b'{"a": 1e999}', "not strict JSON"),
        (b'{"a": "\\ud800"}', "not strict JSON"),
        (b'{"a": "\xff"}', "not strict JSON"),
        (b'{"a": 1,}', "not strict JSON .*column 8"),
        (b'\xef\xbb\xbf{"a": 1}', "not strict JSON"),
        (b"[1]", "a JSON list, not an object"),
        (b"  \r\n", "blank"),
        (b"[" * 100_000, "not strict JSON"),
    ],
)
def test_a_malformed_line_names_file_and_line(tmp_path, line, message):
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(b'{"a": 1}\n' + line)
    lines = read_lines(path, blank="refuse")
    assert next(lines) == (f"{path}:1", {"a": 1})
    with pytest.raises(ConfigError, match=message) as caught:
        next(lines)
    assert str(caught.value).startswith(f"{path}:2: ")


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (b'{"a": 1, "a": 2}\r\n', 2),
        (b'{"a": 1e-400}', 0.0),
        (b'{"a": 18446744073709551615}', 2**64 - 1),
        (b'{"a": 18446744073709551616}', 2.0**64),
        (b'{"a": -9223372036854775809}', -(2.0**63)),
        ('{"a": "x\u2028y"}'.encode(), "x\u2028y"),
    ],
)
def test_what_is_read_from_a_line(line, value):
    found = parse_line(line, "f:1")["a"]
    assert (found, type(found)) == (value, type(value))


def test_blank_lines_are_counted_and_skipped_where_that_is_asked_for(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a":1}\r\n\n{"a":2}\n \n')
    assert [where for where, _ in read_lines(path, blank="skip")] == [f"{path}:1", f"{path}:3"]


@pytest.mark.parametrize(("tail", "torn"), [(b'{"a":', 5), (b'{"a":2}', 0), (b'{"a":2}\n', 0), (b"", 0), (b"x\n", 0)])
def test_a_torn_last_line_is_one_without_an_end_that_is_not_json(tmp_path, tail, torn):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a":1}\n' + tail)
    assert torn_bytes(path) == torn
    if torn:
        assert [found for _, found in read_lines(path, blank="refuse", torn="skip")] == [{"a": 1}]
        with pytest.raises(ConfigError, match=":2: the line is not strict JSON"):
            list(read_lines(path, blank="refuse"))
    elif tail == b"x\n":
        with pytest.raises(ConfigError, match=":2: the line is not strict JSON"):
            list(read_lines(path, blank="refuse", torn="skip"))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"no file '.*none\.jsonl'"):
        list(read_lines(tmp_path / "none.jsonl", blank="skip"))


# rows


@pytest.mark.parametrize("reward", [True, None, 1, "x"])
def test_the_reward_stands_as_it_is(reward):
    found = read(reward=reward)
    assert found.reward is reward
    assert (found.has_reward, read().has_reward) == (True, False)


@pytest.mark.parametrize("value", [True, 1, "false", [0], False, 0, "", None, []])
def test_what_python_calls_true_masks(value):
    assert read(mask_sample=value).masked == bool(value)
    assert not read().masked


def test_the_run_key_is_the_stamp_else_the_agent():
    assert read(_ng_environment_server="srv").run_key == "srv"
    assert read(_ng_environment_server=None).run_key == "a"
    assert read(agent_ref=None).run_key is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"response": []}, "'response' is a JSON list"),
        ({"response": {"usage": [1]}}, "'usage' is a JSON list"),
        ({"agent_ref": "a"}, "'agent_ref' is a JSON str"),
        ({"agent_ref": {"name": 1}}, "'name' is a JSON int"),
        ({"_ng_environment_server": 1}, "'_ng_environment_server' is a JSON int"),
        ({"task": True}, "'_ng_task_index' is True"),
        ({"repeat": None}, "'_ng_rollout_index' is None"),
        ({"repeat": 1.0}, r"'_ng_rollout_index' is 1\.0"),
    ],
)
def test_odd_shapes_are_refused_by_name(fields, message):
    with pytest.raises(ConfigError, match=f"^f:1: {message}"):
        read(**fields)


def test_missing_usage_and_response_are_fine():
    assert measures_of(row(response=None)) == measures_of(row(response={"usage": None})) == {}


def test_an_absent_id_is_refused_or_stands_for_a_number():
    with pytest.raises(ConfigError, match="f:1: the row has no '_ng_rollout_index'"):
        row_key({"_ng_task_index": "x"}, "f:1")
    assert row_key({"_ng_task_index": "x"}, "f:1", absent_index=0) == ("x", 0)


def test_integer_ids_come_before_texts_and_texts_in_code_point_order():
    keys = [("b", 0), ("10", 0), (10, 0), (9, 1), (9, 0), ("9", 0)]
    assert sorted(keys, key=key_order) == [(9, 0), (9, 1), (10, 0), ("10", 0), ("9", 0), ("b", 0)]


ANSWERS = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 2), st.floats(allow_nan=False), st.sampled_from(["1", "", "True", "1.0"])
)


@given(ANSWERS, ANSWERS)
def test_answers_are_one_where_python_calls_them_equal(one, other):
    assert (answer_text(one, "f:1") == answer_text(other, "f:1")) == (one == other)


@pytest.mark.parametrize("answer", [[], {}])
def test_lists_and_objects_are_no_answers(answer):
    with pytest.raises(ConfigError, match="f:1: the answer is a JSON"):
        answer_text(answer, "f:1")


def test_an_input_row_made_from_a_result_has_no_verdict():
    made = input_row(row(3, 1, reward=1, response={}, responses_create_params={"input": []}))
    assert made == row(3, 1, responses_create_params={"input": []})


# names of runs


@pytest.mark.parametrize(
    ("runs", "labels"),
    [
        ([("a", "a"), (None, None)], {"a": "a"}),
        ([("s1", "a"), ("s2", "b")], {"s1": "a", "s2": "b"}),
        ([("s1", "a"), ("s2", "a")], {"s1": "s1", "s2": "s2"}),
        ([("s1", None)], {"s1": "s1"}),
        # the first row with a key tells its agent
        ([("s1", "a"), ("s1", "b"), ("s2", "b")], {"s1": "a", "s2": "b"}),
        # a server named like another one's agent
        ([("b", "a"), ("s", "b"), ("x", "a")], {"b": "b", "s": "s", "x": "x"}),
    ],
)
def test_labels(runs, labels):
    assert label_runs(runs) == labels


NAMES = st.sampled_from(["a", "b", "c", "d"])


@given(st.lists(st.tuples(NAMES, st.none() | NAMES)))
def test_labels_are_distinct_and_all_keys_have_one(runs):
    labels = label_runs(runs)
    assert labels.keys() == {key for key, _ in runs}
    assert len(set(labels.values())) == len(labels)


def test_a_wholly_masked_run_does_not_change_the_others_names():
    measured, masked = [("s1", "a")], [("s2", "a"), ("s3", "c")]
    assert label_with_masked(measured, measured + masked) == {"s1": "a", "s2": "s2", "s3": "c"}
    # unless they would share one
    assert label_with_masked(measured, [*measured, ("a", None)]) == {"s1": "s1", "a": "a"}


def test_a_fan_out_has_several_labels_for_a_task():
    assert is_fan_out([(0, "a"), (0, "b")])
    assert not is_fan_out([(0, "a"), (1, "b"), (0, "a")])


# refusals


def test_keys_that_do_not_fit_are_named():
    keys = [(0, 0), (0, 1)]
    check_keys(keys, keys, allow_partial=False)
    check_keys(keys, keys[:1], allow_partial=True)
    for inputs, results, message in [
        (keys * 2, keys, r"More than one input row for 2 keys: \(0, 0\), \(0, 1\);"),
        (keys, keys[:1] * 2, r"More than one result row for 1 key: \(0, 0\);"),
        (keys, [*keys, ("x", 0)], r"1 result row without an input row: \('x', 0\);"),
        (keys, keys[:1], r"1 input row without a result: \(0, 1\); finish the run, or allow partial"),
    ]:
        with pytest.raises(ConfigError, match=message):
            check_keys(inputs, results, allow_partial=False)


def test_ten_keys_are_named_in_order():
    with pytest.raises(ConfigError) as caught:
        check_unique([(task, 0) for task in range(20, 0, -1)] * 2, "result row")
    shown = ", ".join(f"({task}, 0)" for task in range(1, 11))
    assert str(caught.value) == f"More than one result row for 20 keys: {shown}, ...; keep one of each."


def server_of(one):
    return (one.get("agent_ref") or {}).get("name")


def failed(task, kind, **fields):
    return row(task, 0, _ng_failure_class=kind, _ng_failure_message="boom", failure_reason="x", **fields)


def test_listed_failures_and_missing_rollouts_count_as_zero():
    results = [row(0, reward=1.0, level=3)]
    inputs = [row(task, level=task, extra=1, responses_create_params={}) for task in range(5)]
    failures = [
        failed(0, "timeout"),  # has a result
        failed(1, "timeout"),
        failed(2, "timeout"),
        failed(2, "refused"),  # the last one stands
        failed(3, "timeout", mask_sample=True, reward=-1.0),
        {"_ng_failure_class": "timeout"},  # no key
        {"_ng_task_index": 4, "_ng_rollout_index": 9, "_ng_failure_class": "timeout"},  # no server
    ]
    found = count_as_zero(results, failures, inputs, server_of=server_of, failure_classes=["timeout"], missing=True)
    assert found.rows == [
        *results,
        row(1, reward=0.0, level=1),
        row(3, reward=-1.0, level=3),
        row(4, reward=0.0, level=4),
    ]
    assert (found.dropped, found.failed_as_zero, found.missing_as_zero, found.expected) == ({"refused": 1}, 2, 1, 5)


def test_nothing_is_added_unasked_and_failures_are_dropped_by_class():
    found = count_as_zero([row(0, reward=1)], [failed(1, "x")], [row(2)], server_of=server_of)
    assert (found.rows, found.dropped, found.expected) == ([row(0, reward=1)], {"x": 1}, 2)


def test_servers_number_their_tasks_independently():
    other = row(1, agent_ref={"name": "b"})
    found = count_as_zero([row(1, reward=1)], [], [row(1), other], server_of=server_of, missing=True)
    assert found.rows[1:] == [other | {"reward": 0.0}]


# resume


def dispatched(plan):
    return [(d.row["_ng_task_index"], d.attempt) for d in plan.dispatch]


def test_done_terminal_and_exhausted_rollouts_are_not_made_again():
    inputs = [row(task) for task in range(5)]
    failures = [
        row(1, _ng_failure_terminal=True),
        *[row(2)] * 3,
        row(3, reuse_cached_deliverable=True),
        {"note": "no key"},
    ]
    plan = plan_resume(inputs, [row(0)], failures)
    assert dispatched(plan) == [(3, 1), (4, 0)]
    assert [d.reuse_deliverable for d in plan.dispatch] == [True, False]
    assert (plan.done, plan.terminal, plan.exhausted, plan.failed_attempts) == ([(0, 0)], {(1, 0)}, {(2, 0)}, 5)
    assert dispatched(plan_resume(inputs, [], failures, max_attempts=4)) == [(0, 0), (2, 3), (3, 1), (4, 0)]


def test_retried_timeouts_ignore_the_stamp_and_skipped_ones_are_final():
    failures = [
        row(0, _ng_failure_class="timeout_exceeded", _ng_failure_terminal=True),
        row(1, _ng_failure_class="skipped"),
        row(2, _ng_failure_class="agent_run_error", _ng_failure_terminal=True),
    ]
    inputs = [row(task) for task in range(3)]
    assert dispatched(plan_resume(inputs, [], failures)) == [(1, 1)]
    assert dispatched(plan_resume(inputs, [], failures, retry_terminal_timeouts=True)) == [(0, 1)]


def test_the_longest_go_first_and_the_others_keep_their_order():
    metadata = {"response": {"metadata": {"elapsed_seconds": "30"}}}
    failures = [row(1, elapsed_seconds=5), row(2, **metadata), row(2, elapsed_seconds=1), row(3, elapsed_seconds="?")]
    plan = plan_resume([row(task) for task in range(4)], [], failures, longest_first=True)
    assert [task for task, _ in dispatched(plan)] == [2, 1, 0, 3]


def test_results_with_an_invalid_judge_response_become_attempts_once():
    flagged = row(0, reward=1, invalid_judge_response=True, _ng_failure_terminal=True)
    moved = row(0, reward=1, invalid_judge_response=True) | {
        "_ng_failure_class": "judge_invalid",
        "_ng_migrated_invalid_judge_response": True,
    }
    inputs, results = [row(0), row(1)], [flagged, row(1)]
    plan = plan_resume(inputs, results, [], retry_invalid_judge_responses=True)
    assert (plan.results, plan.failures, dispatched(plan)) == ([row(1)], [moved], [(0, 1)])
    again = plan_resume(inputs, results, [moved], retry_invalid_judge_responses=True)
    assert (again.failures, dispatched(again)) == ([moved], [(0, 1)])
    assert dispatched(plan_resume(inputs, results, [])) == []


# the comparison with the corpus


def test_the_comparison_sees_what_differs_and_nothing_else():
    assert differences({"b": 1, "a": [1.0, float("nan")]}, {"a": [1 + 1e-12, "NaN"], "b": 1.0}) == []
    assert differences([1, 2], [2, 1]) == ["/0: 1, not 2", "/1: 2, not 1"]
    assert differences({"a": True}, {"a": 1}) == ["/a: True, not 1"]
    assert differences({"a": 1}, {"b": 2}) == ["/b: absent, not 2", "/a: 1, not absent"]
    assert differences([], [0]) == [": 0 entries, not 1"]
    assert differences([{"x": 1, "y": 2}], {"$brief": [{"x": 1}]}) == []
    assert differences([{"y": 2}], {"$brief": [{"x": 1}]}) == ["/0/x: absent, not 1"]
    assert differences(1.0, 1.0 + 1e-6) == ["/: 1.0, not 1.000001"]
