"""`math`: spellings of one value, and values that only look alike, as a table; the library's own rules among them."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_spark.verify.base import Judgeable, Verdict, judge_one, load_verifier
from gym_spark.verify.math_spelling import last_answer, respelled, written_out
from tests.corpus import benchmark_files

VERIFIER = load_verifier("math", {})


def judge(answer: str, expected: object) -> Verdict:
    return judge_one(VERIFIER, Judgeable("t", 0, {"expected_answer": expected}, answer, None, None, None))


@pytest.mark.parametrize(
    ("answer", "expected", "reward"),
    [
        # Rows that the library alone judges otherwise: one for each rule of math_spelling, and the words.
        pytest.param(r"\boxed{12\,345}", "12345", 1.0, id="rule-thin-blank"),
        pytest.param("It is 12\u202f345.", "12345", 1.0, id="rule-narrow-blank-in-prose"),
        pytest.param("1 1/2", "1.5", 1.0, id="rule-mixed-number"),
        pytest.param("We need 3 1/2 cups.", "7/2", 1.0, id="rule-mixed-number-in-prose"),
        pytest.param("-1 1/2", "-3/2", 1.0, id="rule-mixed-number-negative"),
        pytest.param("1 1/2", "1/2", 0.0, id="rule-mixed-number-is-no-product"),
        pytest.param("0.5", "1 1/2", 0.0, id="rule-mixed-number-expected"),
        pytest.param(r"\boxed{1e5}", "100000", 1.0, id="rule-power-of-ten"),
        pytest.param("It is 1.5e-3.", "0.0015", 1.0, id="rule-power-of-ten-in-prose"),
        pytest.param(r"\boxed{1e100}", "10^{100}", 1.0, id="rule-large-power-of-ten"),
        pytest.param(r"\boxed{90°}", "90", 1.0, id="rule-degrees"),
        pytest.param("20 °C", r"20^\circ", 1.0, id="rule-degrees-celsius"),
        pytest.param("\uff11\uff12\uff0e\uff15", "12.5", 1.0, id="rule-full-width"),
        pytest.param("\ufeff4\u200b", "4", 1.0, id="rule-no-room"),
        pytest.param(r"\boxed{18 km/h}", "18", 1.0, id="rule-rate"),
        pytest.param(r"\boxed{9.8 m/s^2}", "9.8", 1.0, id="rule-rate-squared"),
        pytest.param(r"\boxed{5 x/y}", "5", 0.0, id="rule-rate-is-no-quotient-of-unknowns"),
        pytest.param(r"0.\overline{3}", "1/3", 1.0, id="rule-repeating"),
        pytest.param(r"\boxed{-0.1\overline{6}}", "-1/6", 1.0, id="rule-repeating-later"),
        pytest.param(r"\boxed{\frac{0.\overline{3}}{2}}", "1/6", 1.0, id="rule-repeating-in-a-fraction"),
        pytest.param("1/3", r"0.\bar{3}", 1.0, id="rule-repeating-expected"),
        pytest.param(r"It is $2.\overline{45}$.", r"\frac{27}{11}", 1.0, id="rule-repeating-two-digits"),
        pytest.param(r"0.\overline9", "1", 1.0, id="rule-repeating-nines"),
        pytest.param(r"0.\overline{3}", "0.3", 0.0, id="rule-repeating-is-not-cut-off"),
        pytest.param(r"0.\overline{3}", "2/3", 0.0, id="rule-repeating-another"),
        pytest.param(r"\neq 5", "5", 0.0, id="rule-not-equal"),
        pytest.param(r"\boxed{x\not=5}", "5", 0.0, id="rule-not-equal-spelled-out"),
        pytest.param(r"x \ne 5", r"x \neq 5", 1.0, id="rule-not-equal-expected"),
        pytest.param(r"Since $x \neq 5$, it is $7$.", "7", 1.0, id="rule-not-equal-before-the-answer"),
        pytest.param(r"\boxed{> 5}", "5", 0.0, id="rule-relation-without-a-left-side"),
        pytest.param(r"\boxed{\geq 5}", "5", 0.0, id="rule-relation-without-a-left-side-in-latex"),
        pytest.param("1.5 million", "1500000", 1.0, id="rule-million"),
        pytest.param(r"\boxed{1.5\text{ million dollars}}", "1,500,000", 1.0, id="rule-million-and-unit"),
        pytest.param("1500", r"1.5\text{ thousand}", 1.0, id="rule-thousand-expected"),
        pytest.param("2.5 million", "2.5", 1.0, id="rule-million-the-task-may-ask-for-millions"),
        pytest.param("2.5 million", "2500", 0.0, id="rule-million-is-no-thousand"),
        pytest.param(r"\boxed{5}. Wait, no. \boxed{4}", "4", 1.0, id="rule-last-box"),
        pytest.param(r"\boxed{5}. Wait, no. \boxed{4}", "5", 0.0, id="rule-last-box-not-the-first"),
        pytest.param(r"\boxed{4} or \boxed{5}", "4", 0.0, id="rule-two-boxes-hedge"),
        pytest.param(r"\boxed{4} and \boxed{5}", "4,5", 1.0, id="rule-two-boxes-are-two-answers"),
        pytest.param(r"\boxed{\text{Yes}}", "Yes", 1.0, id="word"),
        pytest.param("Answer: no.", "Yes", 0.0, id="another-word"),
        pytest.param("**DNE**", "DNE", 1.0, id="word-in-markdown"),
        pytest.param("Yes, it is.", "Yes", 0.0, id="word-within-a-sentence"),
        pytest.param("<think>Yes</think>No", "Yes", 0.0, id="word-in-reasoning"),
        pytest.param(
            r"\boxed{\begin{pmatrix}1\\2\end{pmatrix}}", r"\begin{pmatrix}1\\2\end{pmatrix}", 1.0, id="matrix"
        ),
        pytest.param(
            r"\boxed{\begin{pmatrix}1\\2\end{pmatrix}}", r"\begin{pmatrix}2\\1\end{pmatrix}", 0.0, id="other-matrix"
        ),
        # Thousands, money, units, percent.
        pytest.param("1,234", "1234", 1.0, id="comma"),
        pytest.param(r"\boxed{1{,}234.50}", "1234.5", 1.0, id="latex-comma"),
        pytest.param(r"\boxed{12,\!345}", "12345", 1.0, id="latex-comma-and-thin-blank"),
        pytest.param("1 234", "1234", 0.0, id="an-ordinary-blank-parts-two-numbers"),
        pytest.param("3,5", "3.5", 0.0, id="a-comma-is-no-decimal-point"),
        pytest.param("1.000.000", "1000000", 0.0, id="points-are-no-thousands"),
        pytest.param(r"\boxed{\$1,234}", "1234", 1.0, id="dollars"),
        pytest.param("€18", "18", 1.0, id="euros"),
        pytest.param(r"\boxed{18\,\text{cm}^2}", "18", 1.0, id="unit"),
        pytest.param(r"\boxed{18 cm}", "18", 1.0, id="unit-without-wrapper"),
        pytest.param(r"\boxed{5\text{ minutes}}", r"5\text{ hours}", 1.0, id="units-are-not-compared"),
        pytest.param(r"\boxed{50\%}", "0.5", 1.0, id="percent-as-share"),
        pytest.param(r"\boxed{50\%}", "50", 1.0, id="percent-as-number"),
        pytest.param("0.5", r"50\%", 1.0, id="share-for-percent"),
        pytest.param("50", "0.5", 0.0, id="hundredfold-without-a-percent-sign"),
        # Fractions and decimals.
        pytest.param(r"\boxed{\dfrac{3}{6}}", "1/2", 1.0, id="not-in-lowest-terms"),
        pytest.param(r"\boxed{1\frac12}", "3/2", 1.0, id="mixed-number-in-latex"),
        pytest.param("0.333", "1/3", 0.0, id="three-places"),
        pytest.param("0.333333", "1/3", 1.0, id="six-places"),
        pytest.param("3.14", r"\pi", 0.0, id="pi-to-two-places"),
        pytest.param(".50", "0.5", 1.0, id="without-a-leading-zero"),
        pytest.param("\u22125", "-5", 1.0, id="unicode-minus"),
        pytest.param("5", "-5", 0.0, id="sign"),
        # Tuples, intervals, sets, equations.
        pytest.param("(1, 2)", "(1,2)", 1.0, id="tuple"),
        pytest.param("(2,1)", "(1,2)", 0.0, id="a-tuple-has-an-order"),
        pytest.param(r"\boxed{\{2,1\}}", r"\{1,2\}", 1.0, id="a-set-has-none"),
        pytest.param(r"\boxed{2,1}", "1,2", 1.0, id="a-list-has-none"),
        pytest.param(r"\boxed{1}", "1,2", 0.0, id="one-of-two"),
        pytest.param("(1,234)", "1234", 0.0, id="a-pair-is-no-number"),
        pytest.param("[1,2)", "[1,2)", 1.0, id="interval"),
        pytest.param("[1,2]", "[1,2)", 0.0, id="closed-for-half-open"),
        pytest.param(r"\boxed{(-\infty, 3]}", r"(-\infty,3]", 1.0, id="unbounded-interval"),
        pytest.param(r"\boxed{x \le 3}", r"(-\infty,3]", 0.0, id="a-relation-where-an-interval-is-asked-for"),
        pytest.param(r"\boxed{[0,1)\cup(2,3]}", r"[0,1) \cup (2,3]", 1.0, id="union"),
        pytest.param("$y = 2x+1$", "2x+1", 1.0, id="equation-for-its-right-side"),
        pytest.param("1=1", "1", 1.0, id="equation-for-its-right-side-also-of-numbers"),
        pytest.param(r"\boxed{\pm 2}", "-2,2", 1.0, id="plus-minus"),
        pytest.param(r"\boxed{3:4}", "3:4", 1.0, id="ratio"),
        pytest.param(r"\boxed{101}", "101_2", 1.0, id="the-base-goes-without-saying"),
        pytest.param(r"\boxed{5}", "101_2", 0.0, id="but-is-not-converted"),
        pytest.param("$x^2$", "x^3", 0.0, id="another-power"),
    ],
)
def test_pairs(answer: str, expected: str, reward: float) -> None:
    verdict = judge(answer, expected)
    assert (verdict.state, verdict.reward) == ("scored", reward), verdict


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        (r"12\,345\,678.9", "12345678.9"),
        (r"1\,23", r"1\,23"),
        (r"f(1,\,234)", r"f(1,\,234)"),
        ("3 5/4", "3 5/4"),
        ("1 2/3/4", "1 2/3/4"),
        ("x1 1/2", "x1 1/2"),
        ("1.5 1/2", "1.5 1/2"),
        ("1e-2 and 3E+2", "0.01 and 300"),
        ("2ex", "2ex"),
        ("v1.2e3", "v1.2e3"),
        ("30°15'", "30°15'"),
        ("1e999999999", r"1\times 10^{999999999}"),
    ],
)
def test_what_is_respelled_and_what_is_not(text: str, plain: str) -> None:
    assert respelled(text) == plain


def test_millions_are_multiplied_out_exactly() -> None:
    assert written_out("1,234.567 million") == "1234567000"
    assert written_out("0.1 Trillion") == "100000000000"
    assert written_out("3 millionaires") == "3 millionaires"
    assert written_out(r"2\text{ thousand people}") == r"2000\text{ people}"


@given(st.integers(0, 999), st.integers(1, 98), st.integers(2, 99))
@settings(max_examples=200, deadline=None)
def test_a_mixed_number_keeps_its_value(whole: int, part: int, denominator: int) -> None:
    text = f"{whole} {part}/{denominator}"
    expected = f"{whole * denominator + part}/{denominator}" if part < denominator else text
    assert respelled(text) == expected


def test_every_expected_answer_of_math_500_is_right_as_an_answer() -> None:
    for line in (benchmark_files("math500") / "test.jsonl").read_text(encoding="utf-8").splitlines():
        expected = json.loads(line)["answer"]
        assert judge(rf"Therefore the answer is \boxed{{{expected}}}.", expected).reward == 1.0, expected


HOSTILE = [r"\boxed{" * 50_000, "1 1/2 " * 50_000, r"1\,234" * 50_000, "9" * 300_000, "1e9" * 90_000]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:6])
def test_spelling_takes_linear_time_on_hostile_text(text: str) -> None:
    started = time.process_time()
    written_out(respelled(last_answer(text)))
    assert time.process_time() - started < 1
