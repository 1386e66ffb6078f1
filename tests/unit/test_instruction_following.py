"""Instruction following: each instruction of IFEval with a right, a wrong and a tricky answer."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_spark.endpoint.replies import reply_from
from gym_spark.verify.base import Judgeable, Verdict, judge_one
from gym_spark.verify.instruction_following import CHECKS, InstructionFollowing
from tests.corpus import benchmark_files

EN = "the weather is fine today and the children are playing outside in the garden"
TEN = " ".join(["word"] * 10)

#: Instruction, arguments, answers that follow it, answers that do not.
TABLE: list[tuple[str, dict[str, Any], list[str], list[str]]] = [
    (
        "change_case:capital_word_frequency",
        {"capital_relation": "at least", "capital_frequency": 2},
        ["I am NASA", "A B"],
        ["NASA only", ""],
    ),
    (
        "change_case:capital_word_frequency",
        {"capital_relation": "less than", "capital_frequency": 1},
        ["none Here 42"],
        ["ONE", "I"],
    ),
    ("change_case:english_capital", {}, [EN.upper()], [EN, EN.upper() + " x", "Das WETTER"]),
    (
        "change_case:english_lowercase",
        {},
        [EN, EN + " 42!"],
        [EN.capitalize(), "heute ist das wetter schön und die kinder spielen draußen"],
    ),
    (
        "combination:repeat_prompt",
        {"prompt_to_repeat": "Say Hi."},
        ["Say hi. Hi!", " say hi."],
        ["Hi! Say hi.", "Say hi"],
    ),
    (
        "combination:two_responses",
        {},
        ["a******b", "******a******b******"],
        ["a", "a******a", "a******b******c", "a******\n******b"],
    ),
    ("count:lowercase_counting", {"N": 2}, ["One two three", "ONE 2"], ["a b c"]),
    (
        "detectable_content:number_placeholders",
        {"num_placeholders": 2},
        ["[a] and [b c]", "[x][y][z]"],
        ["[a", "[a] b]", "[[a]"],
    ),
    (
        "detectable_content:postscript",
        {"postscript_marker": "P.S."},
        ["Bye.\nP.S. more", "p. s. more"],
        ["PS more", "P.S"],
    ),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, ["p.p.s more", "P. P. S more"], ["P.S. more"]),
    (
        "detectable_format:constrained_response",
        {},
        ["My answer is yes.", "Well: My answer is maybe."],
        ["yes", "my answer is yes."],
    ),
    (
        "detectable_format:json_format",
        {},
        ['{"a": [1]}', "```json\n[1]\n```", "```\n1\n```", "12"],
        ["{'a': 1}", "", "Here: {}", "[" * 100_000],
    ),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Section", "num_sections": 2},
        ["Section 1 a\nSection 2 b"],
        ["Section 1", "section 1 section 2", "Sections"],
    ),
    (
        "detectable_format:number_bullet_lists",
        {"num_bullets": 2},
        ["* a\n* b", "- a\n  * b"],
        ["* a", "* a\n* b\n- c", "** a\n** b"],
    ),
    (
        "detectable_format:number_highlighted_sections",
        {"num_highlights": 2},
        ["*a* and *b*", "**a** *b*"],
        ["*a*", "* a\n* b", "****"],
    ),
    ("detectable_format:title", {}, ["<<poem of joy>>", "x <<a>> y"], ["<a>", "<< >>", "<<a\nb>>"]),
    (
        "first_word:first_word_sent",
        {"first_word": "so"},
        ["So it is. So be it.", "So, it is."],
        ["So it is. It was.", "So-called art.", ""],
    ),
    ("keywords:existence", {"keywords": ["C++", "go"]}, ["c++ and Go", "going C++"], ["c and go"]),
    ("keywords:forbidden_words", {"forbidden_words": ["art"]}, ["a party", "none"], ["ART.", "my art"]),
    (
        "keywords:frequency",
        {"relation": "less than", "keyword": "a.b", "frequency": 2},
        ["a.b", "axb axb axb"],
        ["a.b A.B"],
    ),
    (
        "keywords:letter_frequency",
        {"let_relation": "at least", "letter": "#", "let_frequency": 2},
        ["##", "# #"],
        ["#"],
    ),
    (
        "keywords:letter_frequency",
        {"let_relation": "less than", "letter": "O", "let_frequency": 2},
        ["o", "none"],
        ["oO"],
    ),
    (
        "language:response_language",
        {"language": "de"},
        ["Heute ist das Wetter schön und die Kinder spielen im Garten.", "123"],
        [EN],
    ),
    ("last_word:last_word_answer", {"last_word": "end"}, ["the end", "The End!"], ["the ending", ""]),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Elm"},
        ["a\n\nelm tree", 'a\n\n"Elm, b'],
        ["elm\n\na", "a\n\nelms", "a\n\nelm\n\nb", "a"],
    ),
    (
        "length_constraints:number_paragraphs",
        {"num_paragraphs": 2},
        ["a***b", "***\na\n***\nb\n***"],
        ["a", "a***\n***b", "a***b***c"],
    ),
    (
        "length_constraints:number_sentences",
        {"relation": "at least", "num_sentences": 2},
        ["One. Two.", "Dr. Smith ran! Why?"],
        ["Dr. Smith ran", ""],
    ),
    ("length_constraints:number_words", {"relation": "at least", "num_words": 10}, [TEN], ["word " * 9]),
    ("letters:letter_counting", {"relation": "at least", "N": 3}, ["abc", "a b é"], ["ab 12"]),
    ("paragraphs:paragraphs", {}, ["a\n***\nb"], ["a\n\nb"]),
    ("punctuation:no_comma", {}, ["a; b"], ["a, b"]),
    (
        "startend:end_checker",
        {"end_phrase": "Any questions?"},
        ["x any questions?", '"x Any questions?"'],
        ["Any questions? No."],
    ),
    ("startend:quotation", {}, ['"a"', ' "a b" '], ['"', "'a'", 'a "b"']),
]


@pytest.mark.parametrize(
    ("name", "arguments", "right", "wrong"), TABLE, ids=[f"{row[0]}-{place}" for place, row in enumerate(TABLE)]
)
def test_an_instruction_is_followed_or_not(
    name: str, arguments: dict[str, Any], right: list[str], wrong: list[str]
) -> None:
    assert [answer for answer in right if not CHECKS[name](answer, arguments)] == []
    assert [answer for answer in wrong if CHECKS[name](answer, arguments)] == []


def test_every_instruction_is_in_the_table() -> None:
    assert {row[0] for row in TABLE} == CHECKS.keys()


def judge(answer: str, inputs: dict[str, Any], **params: Any) -> Verdict:
    return judge_one(InstructionFollowing(**params), Judgeable("t", 0, inputs, answer, "complete", None, None))


TWO = {
    "instruction_id_list": ["punctuation:no_comma", "startend:quotation"],
    "kwargs": [{"num_words": None}, None],
}


def test_strict_and_loose_over_all_and_each() -> None:
    """An introduction and asterisks do not count, loosely; half of the instructions are half, strictly."""
    verdict = judge('Sure\n*"a b"*', TWO)
    assert verdict.scores == {"strict": 0.0, "loose": 1.0, "strict_instructions": 0.5, "loose_instructions": 1.0}
    assert (verdict.reward, verdict.detail) == (0.0, {"not_followed": ["startend:quotation"]})
    assert judge('Sure\n*"a b"*', TWO, reward="loose").reward == 1.0
    assert judge('<think>a, b</think>"a b"', TWO).reward == 1.0
    assert judge("", TWO).scores == dict.fromkeys(verdict.scores, 0.0)


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        ({"instruction_id_list": ["punctuation:no_coma"], "kwargs": [{}]}, "did you mean 'punctuation:no_comma'"),
        ({"instruction_id_list": ["punctuation:no_comma"], "kwargs": []}, "lists of one length"),
        ({"instruction_id_list": ["letters:letter_counting"], "kwargs": [{"N": 3, "relation": "about"}]}, "at least"),
        ({"instruction_id_list": ["count:lowercase_counting"], "kwargs": [{"N": "3"}]}, "whole number"),
    ],
    ids=["unknown", "lengths", "relation", "number"],
)
def test_a_task_that_asks_wrongly_is_an_error_and_no_zero(inputs: dict[str, Any], told: str) -> None:
    verdict = judge("x", inputs)
    assert (verdict.state, verdict.reward) == ("verifier_error", None)
    assert told in verdict.detail["reason"]


def prompts() -> list[dict[str, Any]]:
    lines = (benchmark_files("ifeval") / "input_data.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@settings(max_examples=25, deadline=None)
@given(st.text(max_size=200))
def test_every_prompt_of_ifeval_can_be_judged_on_any_text(answer: str) -> None:
    for row in prompts()[:40]:
        assert judge(answer, row).state == "scored"


def test_all_prompts_are_known() -> None:
    assert {judge("a b c", row).state for row in prompts()} == {"scored"}


@pytest.mark.parametrize("piece", ["*", "[", "<<", "a. ", '"', "\n\n", "***", "A.", "- \n"], ids=repr)
def test_a_huge_answer_takes_no_long_time(piece: str) -> None:
    answer = piece * (1_000_000 // len(piece))
    for name, arguments, _, _ in TABLE:
        began = time.process_time()
        CHECKS[name](answer, arguments)
        assert time.process_time() - began < 4.0, name


def test_nemo_gyms_rollouts_have_the_stored_rewards() -> None:
    """Five rollouts, thirteen instructions: the list of what is followed is the stored one, too."""
    path = benchmark_files("nemo_gym_examples") / "instruction_following" / "example_rollouts.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        verdict = judge(reply_from(row["response"], "responses").output_text or "", row)
        assert verdict.reward == row["reward"]
        followed = [name not in verdict.detail.get("not_followed", []) for name in row["instruction_id_list"]]
        assert followed == row["follow_instruction_list"]
