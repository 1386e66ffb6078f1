"""The pass over whole tasks: the same numbers for any partitioning and row order, strict JSON for any value."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_spark.results.assembly import TEXTS, arrived
from gym_spark.results.group_entries import Groups, Texts, _pieces, merged
from gym_spark.results.partition_pass import LabelSums, pass_over, sums_of, whole
from gym_spark.results.partition_rows import MEASURED_SCHEMA
from gym_spark.results.pass_majority import finish

Row = dict[str, Any]

numbers = st.one_of(st.integers(-3, 3).map(float), st.floats(allow_nan=True, allow_infinity=True), st.just(1e300))
names = st.sampled_from(["strict", "é/ü", 'quo"te', "mean/x", "零"])


@st.composite
def runs(draw: st.DrawFn) -> list[Row]:
    """Tasks with uneven repeats; rewards that are binary, any number or absent; labels one or two per task."""
    rows = []
    for task in range(draw(st.integers(1, 5))):
        for repeat in range(draw(st.integers(1, 4))):
            reward = draw(st.one_of(st.none(), st.sampled_from([0.0, 1.0]), numbers))
            scores = draw(st.dictionaries(names, st.one_of(st.none(), numbers), max_size=3))
            rows.append(
                {
                    "task_id": str(task),
                    "task_index": task,
                    "label": draw(st.sampled_from(["a", "b"])),
                    "rollout_index": repeat,
                    "standing": draw(st.sampled_from(["measured", "measured", "masked", None])),
                    "reward": reward,
                    "scores": list(scores.items()),
                    "measures": draw(st.sampled_from([None, [("output_tokens", 5.0)], [("strict", 2.0)]])),
                    "answer": draw(st.sampled_from([None, "", "x", "y"])),
                }
            )
    return rows


def passed(rows: Sequence[Row], *, fan_out: bool = False, text_ids: bool = False) -> list[Row]:
    """Pass over one partition."""
    table = arrived(
        pa.Table.from_pylist(list(rows), schema=MEASURED_SCHEMA).to_batches(max_chunksize=3), MEASURED_SCHEMA
    )
    if table is None:
        return []
    texts = pa.table({"sample": ['{"q": 1}'], "own": [None]}, pa.schema(TEXTS))
    told = Texts(texts, np.zeros(table.num_rows, np.int64))
    groups = Groups(fan_out=fan_out, text_ids=text_ids)
    return [row for part in pass_over(table, groups, told) for row in whole(part).to_pylist()]


def groups(found: Sequence[Row]) -> list[Row]:
    """The groups' entries in their order, their JSON read strictly."""
    pieces = [row["values"] for row in found if row["kind"] == "lines"]
    lines = [line for table in merged(pieces, between="\n") for line in table["line"].to_pylist()]
    return [json.loads(entry, parse_constant=pytest.fail) for line in lines for entry in line.split("\n")]


def columns(found: Sequence[Row]) -> dict[tuple[str | None, str], list[tuple[int, float]]]:
    """The (repeat, value) pairs of each label's columns."""
    pairs: dict[tuple[str | None, str], list[tuple[int, float]]] = defaultdict(list)
    for row in found:
        if row["kind"] == "column":
            values, repeats = np.frombuffer(row["values"], np.float64), np.frombuffer(row["repeats"], np.int32)
            pairs[row["label"], row["column"]] += zip(repeats.tolist(), values.tolist(), strict=True)
    return {key: sorted(pairs[key], key=str) for key in sorted(pairs, key=str)}


def sums(found: Sequence[Row]) -> dict[str | None, LabelSums]:
    return sums_of((row["label"], row["sums"]) for row in found if row["kind"] == "sums")


@settings(deadline=None)
@given(rows=runs(), partitions=st.integers(2, 7), seed=st.integers(0, 99), fan_out=st.booleans())
def test_numbers_are_the_same_in_any_partitioning_and_order(
    rows: list[Row], partitions: int, seed: int, fan_out: bool
) -> None:
    """One partition, against several of whole tasks with their rows shuffled."""
    whole = passed(rows, fan_out=fan_out)
    shuffled = [rows[place] for place in np.random.default_rng(seed).permutation(len(rows))]
    parts = [
        row
        for part in range(partitions)
        for row in passed([one for one in shuffled if one["task_index"] % partitions == part], fan_out=fan_out)
    ]
    if fan_out or len({row["label"] for row in rows}) == 1:
        assert groups(parts) == groups(whole)
    assert str(columns(parts)) == str(columns(whole))
    one, several = sums(whole), sums(parts)
    assert one.keys() == several.keys()
    for label, expected in one.items():
        own = several[label]
        for name in ("rows", "masked", "tasks", "tasks_by_repeat", "masked_tasks", "all_repeats"):
            assert getattr(own, name) == getattr(expected, name), name
        assert str(_rounded(finish(own.curves))) == str(_rounded(finish(expected.curves)))


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.9g}") if isinstance(value, float) and math.isfinite(value) else value


def test_nothing_comes_of_nothing() -> None:
    assert passed([]) == []


def row(task: str, index: int, repeat: int, **more: Any) -> Row:
    key = {"task_id": task, "task_index": index, "label": "a", "rollout_index": repeat, "standing": "measured"}
    return key | {"reward": 1.0, "scores": [], "measures": None, "answer": None} | more


def test_p43_what_is_not_finite_is_null_and_makes_no_number() -> None:
    """Rewards NaN, infinity and 1: every line is strict JSON, and no mean is told that ignores two of three."""
    found = passed([row("0", 0, 0, reward=math.nan), row("0", 0, 1, reward=math.inf), row("0", 0, 2)])
    (entry,) = groups(found)
    assert [info["reward"] for info in entry["rollout_infos"]] == [None, None, 1.0]
    assert not [name for name in entry if "/" in name]


def test_a_reward_is_shown_as_it_stood() -> None:
    odd = [row("0", 0, 0, scores=[("reward", 1.0)]), row("0", 0, 1, reward=None, scores=[("reward", None)])]
    (entry,) = groups(passed([*odd, row("0", 0, 2, reward=None)]))
    assert [info.get("reward", "absent") for info in entry["rollout_infos"]] == [True, None, "absent"]


def test_text_ids_are_texts_and_numbers_are_numbers() -> None:
    found = groups(passed([row("7", 7, 0), row('"7"', 8, 0), row("x y", 9, 0)], text_ids=True))
    assert [entry["_ng_task_index"] for entry in found] == [7, "7", "x y"]
    assert [entry["rollout_infos"][0]["rollout_id"] for entry in found] == ["7:0", "7:0", "x y:0"]


def test_a_group_tells_of_its_input_and_of_what_it_misses() -> None:
    """Of the first rollout with a result; masked rows are not expected, missing ones are; a benchmark's own members."""
    rows = [row("0", 0, 0, standing=None), row("0", 0, 1), row("0", 0, 2, standing="masked"), row("1", 1, 0)]
    texts = pa.table({"sample": ['{"é": 1}', None], "own": ['"best":2.0', None]}, pa.schema(TEXTS))
    table = arrived(pa.Table.from_pylist(rows, schema=MEASURED_SCHEMA).to_batches(), MEASURED_SCHEMA)
    assert table is not None
    told = Texts(texts, np.array([1, 0, 1, 1]))
    passes = pass_over(table, Groups(fan_out=True, text_ids=False), told)
    first, second = groups([one for part in passes for one in whole(part).to_pylist()])
    assert (first["sample"], first["best"], first["agent_ref"]) == ({"é": 1}, 2.0, {"name": "a"})
    counts = ("num_rollouts", "expected_num_rollouts", "missing_num_rollouts", "reward_profile_completion_pct")
    assert [first[name] for name in counts] == [1, 2, 1, 50.0]
    assert (second["sample"], "best" in second) == ({}, False)


def test_an_aggregates_groups_are_complete_and_name_no_label() -> None:
    table = arrived(pa.Table.from_pylist([row("0", 0, 0)], schema=MEASURED_SCHEMA).to_batches(), MEASURED_SCHEMA)
    assert table is not None
    nothing = Texts(pa.table({}), np.zeros(1, np.int64))
    (entry,) = groups(
        [
            one
            for part in pass_over(table, Groups(fan_out=True, text_ids=True, sample='{"a": 1}'), nothing)
            for one in whole(part).to_pylist()
        ]
    )
    assert (entry["sample"], entry["missing_num_rollouts"], "agent_ref" in entry) == ({"a": 1}, 0, False)


def test_rows_without_a_label_stand_beside_labelled_ones() -> None:
    """In no agent's numbers, and in a group all the same."""
    found = passed([row("0", 0, 0), row("0", 0, 1, label=None), row("1", 1, 0, label=None)])
    assert {label: sums_.rows for label, sums_ in sums(found).items()} == {"a": 1, None: 2}
    assert [entry["num_rollouts"] for entry in groups(found)] == [2, 1]


def test_a_text_id_may_end_in_a_quote_and_a_number_may_be_large() -> None:
    # The lake puts a text that begins with a quote into quotes.
    found = groups(passed([row('say "hi"', 2**60, 0), row('"""', 2**62, 0)], text_ids=True))
    assert [entry["_ng_task_index"] for entry in found] == ['say "hi"', '"']
    assert [entry["rollout_infos"][0]["rollout_id"] for entry in found] == ['say "hi":0', '":0']


def test_entries_of_much_text_are_cut_into_lines() -> None:
    """None is lost, and their order stays; no line is longer than it must be."""
    entries = pa.array(["x" * (9 << 20)] * 3 + ["y"] * 2500, pa.large_string())
    table = pa.table({"task_index": range(2503), "label": pa.nulls(2503, pa.string()), "entry": entries})
    pieces = _pieces(table)["values"].to_pylist()
    lines = [line for part in merged(pieces, between="\n") for line in part["line"].to_pylist()]
    assert [entry[0] for line in lines for entry in line.split("\n")] == ["x"] * 3 + ["y"] * 2500
    assert max(map(len, lines)) < 26 << 20
