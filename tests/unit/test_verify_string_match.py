"""`string_match`: where the answer is taken from, and what counts as equal, as tables of tricky pairs."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_spark.errors import ConfigError
from gym_spark.verify.base import Judgeable, Verdict, judge_one, load_verifier
from gym_spark.verify.extraction import answer_at, last_boxed, tagged


def judge(answer: str | None, task: dict[str, Any], **params: Any) -> Verdict:
    return judge_one(load_verifier("string_match", params), Judgeable("t", 0, task, answer, "complete", None, None))


@pytest.mark.parametrize(
    ("place", "text", "found"),
    [
        pytest.param("boxed", r"\boxed{4}", "4", id="box"),
        pytest.param("boxed", r"\boxed{3} no, \boxed{4}.", "4", id="last-box"),
        pytest.param("boxed", r"\boxed{\frac{1}{2}}", r"\frac{1}{2}", id="nested-braces"),
        pytest.param("boxed", r"\boxed {4}", "4", id="blank-before-brace"),
        pytest.param("boxed", r"\boxed{\{1, 2\}}", r"\{1, 2\}", id="escaped-braces"),
        pytest.param("boxed", r"\boxed{\left\{x\right.}", r"\left\{x\right.", id="one-escaped-brace"),
        pytest.param("boxed", r"\boxed{\text{ Paris }}", "Paris", id="text-wrapper"),
        pytest.param("boxed", r"\boxed{\mathbf{\text{Paris}}}", "Paris", id="two-wrappers"),
        pytest.param("boxed", r"\boxed{\text{a} + \text{b}}", r"\text{a} + \text{b}", id="wrappers-side-by-side"),
        pytest.param("boxed", r"\boxed{\text{a{b}c} d \text{e}}", r"\text{a{b}c} d \text{e}", id="wrapper-with-braces"),
        pytest.param("boxed", r"\boxed{3} and \boxed{4", None, id="cut-off-in-the-last-box"),
        pytest.param("boxed", r"\boxed{\boxed{4}}", "4", id="box-in-box"),
        pytest.param("boxed", r"\boxed{}", "", id="empty-box"),
        pytest.param("boxed", "4", None, id="no-box"),
        pytest.param("final_answer", "Final answer: Saturn", "Saturn", id="label"),
        pytest.param("final_answer", "Answer: Mars\nFinal answer: Saturn\n", "Saturn", id="last-label"),
        pytest.param("final_answer", "**Final answer:** Saturn", "Saturn", id="bold-label"),
        pytest.param("final_answer", "**Answer: Saturn**", "Saturn", id="bold-line"),
        pytest.param("final_answer", "**Answer**: **Saturn**.", "**Saturn**.", id="both-bold"),
        pytest.param("final_answer", "**Answer: Saturn**.", "Saturn.", id="bold-line-and-full-stop"),
        pytest.param("final_answer", "Answer: 2**3", "2**3", id="a-power-is-no-emphasis"),
        pytest.param("final_answer", "Answer: __init__.py", "__init__.py", id="a-whole-pair-stays"),
        pytest.param("final_answer", "**Answer:**Saturn", "Saturn", id="bold-label-without-a-blank"),
        pytest.param("final_answer", "__Answer__: Saturn", "Saturn", id="underscores"),
        pytest.param("final_answer", "### Final Answer:\n\nSaturn", "Saturn", id="heading"),
        pytest.param("final_answer", "**Final Answer:**\n\nAnswer: Paris", "Paris", id="heading-above-a-label"),
        pytest.param("final_answer", "### Answer:\n**Answer:** Paris", "Paris", id="heading-above-a-bold-label"),
        pytest.param("final_answer", "Answer: \n > **Final answer**: 5", "5", id="heading-above-a-quoted-label"),
        pytest.param("final_answer", "Answer: Answer: 5", "5", id="label-twice"),
        pytest.param("final_answer", "Answer: A\nAnswer:", "A", id="label-with-nothing-behind-it"),
        pytest.param("final_answer", "Answer: Answers: many", "Answers: many", id="a-word-that-begins-like-one"),
        pytest.param("final_answer", "ANSWER：Saturn", "Saturn", id="full-width-colon"),  # noqa: RUF001
        pytest.param("final_answer", r"Answer: \boxed{80}", "80", id="box-behind-label"),
        pytest.param("final_answer", r"\boxed{7}. Answer: 80", "80", id="label-before-box"),
        pytest.param("final_answer", r"It is \boxed{80}", "80", id="box-without-label"),
        pytest.param("final_answer", "Counteranswer: 5", None, id="label-within-a-word"),
        pytest.param("final_answer", "The answer is 5", None, id="no-colon"),
        pytest.param("last_line", "Well.\n\n Pacific Ocean \n\n", "Pacific Ocean", id="last-line"),
        pytest.param("last_line", " \n ", None, id="no-line"),
        pytest.param("tag", "<answer>1</answer> <answer> 2 </answer>", "2", id="last-tag"),
        pytest.param("tag", "<answer>1</answer> <answer>2", None, id="last-tag-open"),
        pytest.param("tag", "2</answer>", None, id="tag-closed-only"),
        pytest.param("full_response", " a\nb ", "a\nb", id="whole"),
        pytest.param("full_response", "", None, id="empty"),
    ],
)
def test_an_answer_is_taken_from_its_place(place: Any, text: str, found: str | None) -> None:
    assert answer_at(place, text) == found


@pytest.mark.parametrize(
    ("answer", "expected", "params", "reward"),
    [
        pytest.param("paris", "Paris", {}, 1.0, id="case"),
        pytest.param("paris", "Paris", {"case_sensitive": True}, 0.0, id="case-counts"),
        pytest.param("STRASSE", "straße", {}, 1.0, id="case-folding"),
        pytest.param("Cafe\u0301", "Caf\u00e9", {"compatibility": False}, 1.0, id="composed"),
        pytest.param("\uff30aris", "Paris", {}, 1.0, id="full-width"),
        pytest.param("\uff30aris", "Paris", {"compatibility": False}, 0.0, id="full-width-counts"),
        pytest.param("\u0130stanbul", "i\u0307stanbul", {}, 1.0, id="turkish-dotted-i"),
        pytest.param("Pacific \n Ocean", "Pacific Ocean", {}, 1.0, id="white-space"),
        pytest.param("Pacific\u00a0Ocean", "Pacific Ocean", {"compatibility": False}, 1.0, id="no-break-space"),
        pytest.param("PacificOcean", "Pacific Ocean", {}, 0.0, id="joined"),
        pytest.param("PacificOcean", "Pacific Ocean", {"whitespace": "ignore"}, 1.0, id="joined-allowed"),
        pytest.param("**Paris**.", "Paris", {}, 1.0, id="markdown-and-full-stop"),
        pytest.param("\u201cParis.\u201d", "Paris", {}, 1.0, id="typographic-quotes"),
        pytest.param("$80$", "80", {}, 1.0, id="dollars-around"),
        pytest.param("$80", "80", {}, 0.0, id="one-dollar-is-money"),
        pytest.param("-5", "5", {}, 0.0, id="sign-counts"),
        pytest.param("5!", "5", {}, 0.0, id="factorial"),
        pytest.param("Yes!", "yes", {}, 1.0, id="exclamation"),
        pytest.param("C++", "C", {}, 0.0, id="plus-signs-count"),
        pytest.param("C#", "C", {}, 0.0, id="sharp-counts"),
        pytest.param("50%", "50", {}, 0.0, id="percent-counts"),
        pytest.param("1,000", "1000", {}, 0.0, id="numbers-are-texts"),
        pytest.param("Paris.", "Paris", {"punctuation": "keep"}, 0.0, id="punctuation-kept"),
        pytest.param("U.S.A.", "U S A", {"punctuation": "ignore"}, 1.0, id="punctuation-ignored"),
        pytest.param("...", "...", {}, 1.0, id="only-punctuation"),
        pytest.param("b", ["a", "b"], {}, 1.0, id="any-of"),
        pytest.param("ab", ["a", "b"], {}, 0.0, id="none-of"),
        pytest.param("4", 4, {}, 1.0, id="number-as-expected"),
    ],
)
def test_equality(answer: str, expected: Any, params: dict[str, Any], reward: float) -> None:
    verdict = judge(answer, {"expected_answer": expected}, extraction_mode="full_response", **params)
    assert (verdict.state, verdict.reward) == ("scored", reward)


@pytest.mark.parametrize(
    ("answer", "extracted"),
    [
        ("Answer: **Paris**.", "Paris"),
        ("**Answer: Paris**.", "Paris"),
        ("**Answer:** *Paris*", "Paris"),
        ("Answer: New  York", "New York"),
        ("Answer: ...", "..."),
        ("Answer: paris", "paris"),
    ],
)
def test_the_extracted_answer_is_without_what_does_not_count_but_keeps_its_case(answer: str, extracted: str) -> None:
    assert judge(answer, {"expected_answer": "x"}).extracted_answer == extracted


@pytest.mark.parametrize(
    ("answer", "expected", "reward"),
    [
        pytest.param("The capital is Paris, of course.", "paris", 1.0, id="word"),
        pytest.param("concatenate", "cat", 0.0, id="within-a-word"),
        pytest.param("cats", "cat", 0.0, id="plural"),
        pytest.param("It is 5.", "5", 1.0, id="number-and-full-stop"),
        pytest.param("It is 1.5", "5", 0.0, id="within-a-decimal"),
        pytest.param("It is 5.5", "5", 0.0, id="before-a-fraction"),
        pytest.param("It is -5", "5", 0.0, id="negative"),
        pytest.param("8 - 5 = 3", "3", 1.0, id="behind-an-equals-sign"),
        pytest.param("3-5", "5", 1.0, id="hyphen"),
        pytest.param("5,000", "5", 0.0, id="thousands"),
        pytest.param("15", "5", 0.0, id="longer-number"),
        pytest.param("5%", "5", 0.0, id="percent"),
        pytest.param("答案是北京。", "北京", 1.0, id="script-without-blanks"),
        pytest.param("使用GPU加速", "GPU", 1.0, id="two-scripts"),
        pytest.param("I use C++.", "C++", 1.0, id="ends-in-a-sign"),
        pytest.param("a.c and abc", "a.c", 1.0, id="expected-is-no-expression"),
        pytest.param("abc", "a.c", 0.0, id="its-dot-is-a-dot"),
        pytest.param("New\nYork", "new york", 1.0, id="across-lines"),
    ],
)
def test_containment_is_of_whole_words_and_numbers(answer: str, expected: str, reward: float) -> None:
    verdict = judge(answer, {"expected_answer": expected}, extraction_mode="full_response", compare="contains")
    assert (verdict.state, verdict.reward) == ("scored", reward)


@pytest.mark.parametrize(
    ("answer", "task", "params", "reward", "extracted"),
    [
        pytest.param("x=1; x=2", {}, {"pattern": r"x=(\d)"}, 1.0, "2", id="last-match"),
        pytest.param("x=1; x=2", {"pattern": r"x=(\d)"}, {}, 1.0, "2", id="the-task's"),
        pytest.param("x=2; y=1", {"pattern": r"y=(\d)"}, {"pattern": r"x=(\d)"}, 1.0, "2", id="parameter-wins"),
        pytest.param("Answer: 2", {"pattern": "z"}, {"extraction_mode": "final_answer"}, 1.0, "2", id="place-wins"),
        pytest.param("none", {}, {"pattern": r"x=(\d)"}, 0.0, None, id="no-match"),
        pytest.param("<think>x=2</think>x=1", {}, {"pattern": r"x=(\d)"}, 0.0, "1", id="not-in-reasoning"),
        pytest.param("2", {"extraction_mode": "last_line"}, {}, 1.0, "2", id="the-task's-place"),
        pytest.param(
            "2", {"extraction_mode": "boxed"}, {"extraction_mode": "last_line"}, 1.0, "2", id="place-of-parameter"
        ),
    ],
)
def test_expressions_and_places_of_tasks(
    answer: str, task: dict[str, Any], params: dict[str, Any], reward: float, extracted: str | None
) -> None:
    verdict = judge(answer, {"expected_answer": "2"} | task, **params)
    assert (verdict.state, verdict.reward, verdict.extracted_answer) == ("scored", reward, extracted)


def test_expected_answers_may_be_expressions_for_the_whole_answer() -> None:
    params = {"compare": "pattern", "extraction_mode": "full_response"}
    rewards = [judge(text, {"expected_answer": [r"\d{2}", "TEN"]}, **params).reward for text in ("10", "ten", "100")]
    assert rewards == [1.0, 1.0, 0.0]


@pytest.mark.parametrize("answer", [None, "", "   ", "<think>Answer: 4", "no label here"])
def test_an_answer_that_is_not_there_scores_0_with_a_reason(answer: str | None) -> None:
    verdict = judge(answer, {"expected_answer": "4"})
    assert (verdict.state, verdict.reward, verdict.extracted_answer) == ("scored", 0.0, None)
    assert "not where the task wants it" in verdict.detail["reason"]


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ({}, "expected_answer is None"),
        ({"expected_answer": ""}, "expected_answer is ''"),
        ({"expected_answer": "  "}, "nothing is left to compare"),
        ({"expected_answer": "4", "extraction_mode": "end"}, "extraction_mode is 'end'; it must be one of boxed"),
        ({"expected_answer": "4", "case_sensitive": "no"}, "case_sensitive is 'no'; it must be bool"),
        ({"expected_answer": "4", "pattern": "("}, "pattern '(' is not a regular expression"),
    ],
)
def test_a_wrong_task_is_verifier_error(task: dict[str, Any], reason: str) -> None:
    for answer in ("Answer: 4", ""):
        verdict = judge(answer, task)
        assert (verdict.state, verdict.reward) == ("verifier_error", None)
        assert reason in verdict.detail["reason"]


def test_a_parameter_that_is_no_expression_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"'string_match': pattern '\(' is not a regular expression"):
        load_verifier("string_match", {"pattern": "("})


@pytest.mark.parametrize("verifier", ["string_match", "numeric"])
def test_p22_an_expression_that_would_take_years_is_a_timeout(verifier: str) -> None:
    item = Judgeable("t", 0, {"expected_answer": "4"}, "a" * 80 + "b", None, None, None)
    started = time.process_time()
    verdict = judge_one(load_verifier(verifier, {"pattern": "(a|aa)+$"}), item)
    assert (verdict.state, verdict.reward) == ("verify_timeout", None)
    assert time.process_time() - started < 4


HOSTILE = [r"\boxed{" * 50_000, "{" * 300_000, "answer" * 50_000, "answer:\n" * 40_000, "answer" + " " * 300_000]
HOSTILE += ["answer:" + "*" * 300_000, "answer:\n#" * 40_000, "answer: final " * 40_000, "answer:" + "\n" * 300_000]
HOSTILE += ["<answer>" * 40_000, "\n" * 300_000, '"' * 300_000, "**" * 150_000, "\\" * 300_001, r"\text{" * 50_000]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text[:8]))
def test_every_place_of_a_hostile_text_is_searched_in_linear_time(text: str) -> None:
    started = time.process_time()
    for place in ("boxed", "final_answer", "last_line", "tag", "full_response"):
        judge(text, {"expected_answer": "4"}, extraction_mode=place)
    judge(text, {"expected_answer": "4"}, extraction_mode="full_response", compare="contains")
    assert time.process_time() - started < 3


WAYS = [
    load_verifier("string_match", {"extraction_mode": "full_response", **params})
    for params in ({}, {"punctuation": "keep"}, {"compatibility": False}, {"whitespace": "ignore"})
]


@given(st.text(max_size=40))
@settings(max_examples=200, deadline=None)
def test_every_text_equals_itself_and_its_small_letters(text: str) -> None:
    for verifier in WAYS:
        for answer in (text, text.lower()):
            verdict = judge_one(verifier, Judgeable("t", 0, {"expected_answer": text}, answer, None, None, None))
            assert verdict.reward == (1.0 if text.strip() else None)


@given(st.text(alphabet="ab{}\\ $", max_size=30), st.text(max_size=20))
@settings(max_examples=200, deadline=None)
def test_what_is_put_in_a_box_or_tag_is_found_again(inside: str, before: str) -> None:
    marked = f"{before}<answer>{inside}</answer>"
    assert tagged(marked, "answer") == inside.strip()
    if "\\" not in inside and _is_balanced(inside):
        assert last_boxed(rf"{before}\boxed{{{inside}}} and more") == inside.strip()


def _is_balanced(text: str) -> bool:
    depth = 0
    for char in text:
        depth += {"{": 1, "}": -1}.get(char, 0)
        if depth < 0:
            return False
    return depth == 0
