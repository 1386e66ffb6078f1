"""What each verifier takes for the answer, as tables of tricky pairs."""

from __future__ import annotations

from typing import Any

import pytest

from gym_spark.errors import ConfigError
from gym_spark.verify.base import Judgeable, Verdict, judge_one, load_verifier


def judge(name: str, answer: str | None, expected: Any, **params: Any) -> Verdict:
    item = Judgeable("t", 0, {"expected_answer": expected}, answer, "complete", None, None)
    return judge_one(load_verifier(name, params), item)


@pytest.mark.parametrize(
    ("answer", "expected", "params", "reward"),
    [
        (" Paris\n", "Paris", {}, 1.0),
        ("paris", "Paris", {}, 0.0),
        ("PARIS", "Paris", {"ignore_case": True}, 1.0),
        ("STRASSE", "straße", {"ignore_case": True}, 1.0),
        ("Paris.", "Paris", {}, 0.0),
        ("**Paris.**", "Paris", {"strip_punctuation": True}, 1.0),
        ("Cafe\u0301", "Caf\u00e9", {}, 1.0),
        ("b", ["a", "b"], {}, 1.0),
        ("c", ["a", "b"], {}, 0.0),
        ("4", 4, {}, 1.0),
        ("<think>Lyon</think>Paris", "Paris", {}, 1.0),
        ("The answer is Paris", "Paris", {}, 0.0),
        ("\ufeffParis\u200b\n", "Paris", {}, 1.0),
        ("\u201cParis.\u201d", "Paris", {}, 0.0),
        ("\u201cParis.\u201d", "Paris", {"strip_punctuation": True}, 1.0),
        ("\u201e\u200bParis\u2026\u201c", "Paris", {"strip_punctuation": True}, 1.0),
        ("\u00abParis\u00bb", "Paris", {"strip_punctuation": True}, 1.0),
        ("$5", "5", {"strip_punctuation": True}, 1.0),
        ("\u20ac5", "5", {"strip_punctuation": True}, 0.0),
    ],
)
def test_exact_match(answer: str, expected: Any, params: dict[str, Any], reward: float) -> None:
    assert judge("exact_match", answer, expected, **params).reward == reward


@pytest.mark.parametrize("verifier", ["exact_match", "numeric", "math"])
@pytest.mark.parametrize("answer", [None, "", "<think>4"])
def test_p12_an_answer_that_is_empty_or_only_reasoning_scores_0_and_extracts_nothing(
    verifier: str, answer: str | None
) -> None:
    assert judge(verifier, answer, "4") == Verdict("scored", 0.0, None)


@pytest.mark.parametrize(
    ("answer", "extracted"),
    [
        ("42", "42"),
        ("-5", "-5"),
        ("\u22125", "-5"),
        ("\u20135", "-5"),
        ("It is \u20135.5", "-5.5"),
        ("- 5", "-5"),
        (" \u2212 1,234.5\n", "-1234.5"),
        ("- 5 apples", "5"),
        ("- 4\n- 5", "5"),
        ("Answer: - 5", "-5"),
        ("x = \u2013 5", "-5"),
        ("Sum:\n- 5", "5"),
        ("The total \u2013 5", "5"),
        ("10 \u2013 3", "3"),
        ("+4", "4"),
        ("x=-3", "-3"),
        ("10 - 3 = 7", "7"),
        ("10 - 3", "3"),
        ("2-7", "7"),
        ("5\u20137", "7"),
        ("2024-05-17", "17"),
        ("(-3)", "-3"),
        ("1,234", "1234"),
        ("12,345,678.90", "12345678.9"),
        ("1{,}234", "1234"),
        ("1\u202f234", "1234"),
        ("1 000 000", "1000000"),
        ("It is 1 050.5 m", "1050.5"),
        ("-25 000", "-25000"),
        ("1\u2009000\u2009000", "1000000"),
        ("1\u00a0000\u00a0000", "1000000"),
        ("1 234 567", "567"),
        ("10 20 030", "20030"),
        ("0 000", "0"),
        ("5 0001", "1"),
        ("1, 2", "2"),
        ("1,2", "2"),
        ("3.", "3"),
        ("It is 3.50.", "3.5"),
        ("so...5", "5"),
        ("it is.5", "5"),
        (".5", "0.5"),
        ("$1,234.50", "1234.5"),
        ("-$5", "-5"),
        ("$-5", "-5"),
        ("€3", "3"),
        (r"\$20", "20"),
        ("$72$", "72"),
        ("25%", "25"),
        ("1e5", "100000"),
        ("1.5e-3", "0.0015"),
        ("2 x 10^3", "2000"),
        ("2 \u00d7 10**3", "2000"),
        (r"1.5 \times 10^{-3}", "0.0015"),
        ("**42** apples", "42"),
        (r"\boxed{42}", "42"),
        ("#### 72", "72"),
        ("5 m^2", "5"),
        ("7 kg of CO2", "7"),
        ("v1.2.3", None),
        ("1/2", "2"),
        ("-0", "0"),
        ("1e400", "1E+400"),
        ("1e99999999999999999999", None),
        ("none", None),
    ],
)
def test_numeric_takes_the_last_number(answer: str, extracted: str | None) -> None:
    assert judge("numeric", answer, "1").extracted_answer == extracted


@pytest.mark.parametrize(
    ("answer", "expected", "params", "reward"),
    [
        ("1234", "1,234", {}, 1.0),
        ("18.0", "5 + 13 = <<5+13=18>>18\n#### 18", {}, 1.0),
        ("$18", 18, {}, 1.0),
        ("0.3", 0.3, {}, 1.0),
        ("0.30000000000000004", "0.3", {}, 0.0),
        ("3", ["2", "3"], {}, 1.0),
        ("101", "100", {"tolerance": 0.01}, 1.0),
        ("101.1", "100", {"tolerance": 0.01}, 0.0),
        ("-101", "-100", {"tolerance": 0.01}, 1.0),
        ("0.001", "0", {"tolerance": 0.5}, 0.0),
        ("1e400000", "1", {"tolerance": 0.5}, 0.0),
        ("#### 5 and 6\n#### 7 more", "7", {"pattern": r"#### (\S+)"}, 1.0),
        ("7 then #### none", "7", {"pattern": r"#### (\S+)"}, 0.0),
        ("Answer: 7. I used 3 steps", "7", {"pattern": r"Answer: [\d.]+"}, 1.0),
    ],
)
def test_numeric_compares_exactly_in_decimals(
    answer: str, expected: Any, params: dict[str, Any], reward: float
) -> None:
    verdict = judge("numeric", answer, expected, **params)
    assert (verdict.state, verdict.reward) == ("scored", reward)


@pytest.mark.parametrize("expected", ["2-7", "none", "", None, [], True, {"a": 1}])
def test_an_unusable_expected_answer_is_verifier_error_and_never_0(expected: Any) -> None:
    verdict = judge("numeric", "7", expected)
    assert (verdict.state, verdict.reward) == ("verifier_error", None)
    assert "expected_answer" in verdict.detail["reason"]


def test_a_pattern_that_is_no_regular_expression_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"pattern '\(' is not a regular expression"):
        load_verifier("numeric", {"pattern": "("})


@pytest.mark.parametrize(
    ("answer", "expected", "reward", "extracted"),
    [
        ("0.5", r"\frac{1}{2}", 1.0, r"\frac{1}{2}"),
        (r"\frac{1}{2}", "1/2", 1.0, r"\frac{1}{2}"),
        ("2", r"2\sqrt{3}", 0.0, "2"),
        (r"2\sqrt{3}", "2", 0.0, r"2\sqrt{3}"),
        ("(1, 2)", "(1,2)", 1.0, "(1, 2)"),
        (r"It is $\{2,1\}$.", r"\{1,2\}", 1.0, r"\{2,1\}"),
        (r"The answer is \boxed{(x+1)^2}.", "x^2+2x+1", 1.0, "(x+1)^2"),
        ("$x=5$", "5", 1.0, "x=5"),
        ("100000", "1e5", 1.0, "100000"),
        ("$1234$", "1,234", 1.0, "1234"),
        ("The answer is 4", 4, 1.0, "4"),
        ("<think>5</think>$4$", ["3", "4"], 1.0, "4"),
        (r"\sqrt{", "4", 0.0, None),
        ("no idea", "4", 0.0, None),
    ],
)
def test_math_compares_symbolically(answer: str, expected: Any, reward: float, extracted: str | None) -> None:
    verdict = judge("math", answer, expected)
    assert (verdict.state, verdict.reward, verdict.extracted_answer) == ("scored", reward, extracted)


@pytest.mark.parametrize("expected", [r"\sqrt{", "no mathematics here"])
def test_math_with_an_unparsable_expected_answer_is_verifier_error(expected: str) -> None:
    verdict = judge("math", "4", expected)
    assert (verdict.state, verdict.reward) == ("verifier_error", None)
