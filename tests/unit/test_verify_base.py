"""The registry, the parameters' validation and the rules that every verdict keeps."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, get_args

import pytest
from pydantic import Field

from gym_spark.errors import ConfigError
from gym_spark.verify.base import (
    Judgeable,
    UnscoredState,
    Verdict,
    Verifier,
    judge_one,
    load_verifier,
    needed_inputs,
    verifier_descriptions,
    verifier_digest,
)

ITEM = Judgeable("t", 0, {}, "4", "complete", None, None)


class Returns(Verifier):
    name = "returns"

    def __init__(self, *, value: Any = None) -> None:
        self._value = value

    def verify(self, item: Judgeable) -> Verdict:
        return self._value  # type: ignore[no-any-return]  # the point of the test


class Raises(Verifier):
    name = "raises"

    def __init__(self, *, error: Any) -> None:
        self._error = error

    def verify(self, item: Judgeable) -> Verdict:
        raise self._error


class Threshold(Verifier):
    name = "threshold"

    def __init__(self, *, least: Annotated[float, Field(ge=0, le=1)]) -> None:
        if least == 0.5:
            raise RuntimeError("half is not supported")

    def verify(self, item: Judgeable) -> Verdict:
        return Verdict.scored(1.0)


@pytest.mark.parametrize("reward", [math.nan, math.inf, None, "1"])
def test_p19_a_scored_verdict_without_a_finite_reward_is_verifier_error_and_never_0(reward: Any) -> None:
    verdict = Verdict.scored(reward)
    assert (verdict.state, verdict.reward) == ("verifier_error", None)
    assert repr(reward) in verdict.detail["reason"]


def test_p19_an_unscored_verdict_never_carries_a_reward() -> None:
    assert Verdict.unscored("judge_failed", "http") == Verdict("judge_failed", None, detail={"reason": "http"})
    assert judge_one(Returns(value=Verdict("judge_failed", 0.0)), ITEM).reward is None


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (1.0, "float, not a Verdict"),
        (Verdict("scored", 1.0, 4), "extracted 4, not text"),  # type: ignore[arg-type]  # a user's mistake
        (Verdict("scored", 1.0, scores={"f1": math.nan}), "score 'f1' nan"),
        (Verdict("right", 1.0), "unknown state 'right'"),  # type: ignore[arg-type]  # a user's mistake
        (Verdict("scored", 1.0, detail={"when": object()}), "not JSON serializable"),
        (Verdict("scored", 1.0, detail={"p": math.nan}), "not JSON compliant"),
        (Verdict("scored", 1.0, detail=["a"]), "returned ['a'] as detail"),  # type: ignore[arg-type]  # the same
        (Verdict("scored", 1.0, scores=None), "returned None as scores"),  # type: ignore[arg-type]  # the same
        (Verdict("scored", 1.0, scores={1: 0.5}), "named a score 1, which is not text"),  # type: ignore[dict-item]
        (Verdict("scored", 1.0, scores={"\ud800": 0.5}), r"named a score '\ud800'"),
        (Verdict("scored", 10**400), "too large"),
        (Verdict("not_scored", None, scores={"x": "abc"}), "score 'x' 'abc'"),  # type: ignore[dict-item]
        (Verdict("judge_failed", None, scores={1: 0.5}), "named a score 1"),  # type: ignore[dict-item]
        (Verdict("verify_timeout", None, detail={"when": object()}), "not JSON serializable"),
    ],
)
def test_p52_what_a_verifier_returns_wrongly_is_verifier_error(value: Any, reason: str) -> None:
    verdict = judge_one(Returns(value=value), ITEM)
    assert (verdict.state, verdict.reward) == ("verifier_error", None)
    assert reason in verdict.detail["reason"]


def test_p52_a_verifier_that_ends_the_process_is_verifier_error_but_ctrl_c_is_not_swallowed() -> None:
    verdict = judge_one(Raises(error=SystemExit(3)), ITEM)
    assert (verdict.state, verdict.reward) == ("verifier_error", None)
    assert verdict.detail["reason"] == "SystemExit: 3"
    with pytest.raises(KeyboardInterrupt):
        judge_one(Raises(error=KeyboardInterrupt()), ITEM)


def test_half_a_surrogate_pair_in_evidence_is_replaced_and_costs_no_verdict() -> None:
    found = judge_one(Returns(value=Verdict("scored", 1.0, "a\ud800", detail={"\ud800": ["\udfff", "é"]})), ITEM)
    assert found == Verdict("scored", 1.0, "a?", detail={"?": ["?", "é"]})
    assert judge_one(Raises(error=ValueError("\ud800")), ITEM).detail == {"reason": "ValueError: ?"}


def test_a_reason_shows_a_huge_value_shortened() -> None:
    verdict = judge_one(Returns(value=Verdict("scored", 1.0, ["x"] * 1_000_000)), ITEM)  # type: ignore[arg-type]
    assert len(verdict.detail["reason"]) < 200
    assert judge_one(Returns(value=Verdict("scored", 1.0, "x" * 1_000_000)), ITEM).state == "scored"


def test_what_a_users_module_prints_or_raises_at_import_stays_off_standard_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    source = Path(__file__).read_text(encoding="utf-8")
    (tmp_path / "chatty_verifier.py").write_text(f"{source}\nprint('Loading!')\n", encoding="utf-8")
    (tmp_path / "leaving_verifier.py").write_text("import sys; sys.exit('no licence')\n", encoding="utf-8")
    (tmp_path / "unreadable_verifier.py").write_text("class X(\n", encoding="utf-8")
    load_verifier("chatty_verifier:Returns", {})
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "Loading!\n")
    for module, reason in {"leaving_verifier": "SystemExit: no licence", "unreadable_verifier": "SyntaxError"}.items():
        with pytest.raises(ConfigError, match=f"'{module}:X' cannot be imported .*{reason}"):
            load_verifier(f"{module}:X", {})


def test_what_a_verifier_needs_is_known_before_it_judges_and_unknown_where_it_is_not_installed() -> None:
    assert [needed_inputs(name) for name in ("exact_match", "math", "numeric")] == [("expected_answer",)] * 3
    assert needed_inputs("not_installed_here:Judge") == ()


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("numerc", {}, "There is no verifier 'numerc'; did you mean 'numeric'"),
        ("exact_match", {"ignore_cas": True}, "unknown key 'ignore_cas'; did you mean 'ignore_case'"),
        ("exact_match", {"ignore_case": "perhaps"}, "'ignore_case' is \"perhaps\""),
        ("numeric", {"tolerance": -1}, "'tolerance' is -1"),
        ("no_such_module:Judge", {}, "cannot be imported from 'no_such_module:Judge'"),
        (f"{__name__}:Missing", {}, "cannot be imported"),
        (":x", {}, "cannot be imported from ':x' (ValueError"),
        ("gym_spark.errors:ConfigError", {}, "must be a subclass of"),
        (f"{__name__}:Threshold", {}, "required key 'least' is missing"),
        (f"{__name__}:Threshold", {"least": 2}, "'least' is 2"),
        (f"{__name__}:Threshold", {"least": 0.5}, "half is not supported"),
    ],
)
def test_a_wrong_name_or_parameter_is_one_config_error(name: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_verifier(name, params)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_users_own_class_is_named_by_module_and_class() -> None:
    assert load_verifier(f"{__name__}:Threshold", {"least": 1}).verify(ITEM).reward == 1.0


def test_the_digest_follows_name_parameters_and_library_version() -> None:
    digests = {
        verifier_digest("numeric", {}),
        verifier_digest("numeric", {"tolerance": 0.1}),
        verifier_digest("exact_match", {}),
        verifier_digest("math", {}),
    }
    assert len(digests) == 4
    assert verifier_digest("numeric", {}) == verifier_digest("numeric", {})
    assert "math-verify==" in load_verifier("math", {}).version


def test_listing_and_loading_verifiers_imports_no_heavy_library() -> None:
    assert list(verifier_descriptions()) == sorted(verifier_descriptions())
    assert set(verifier_descriptions()) >= {"exact_match", "numeric", "math"}
    program = (
        "import sys; from gym_spark.verify.base import load_verifier, verifier_descriptions; "
        "verifier_descriptions(); load_verifier('math', {}); "
        "print(sorted({'math_verify', 'sympy', 'pyspark', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("state", get_args(UnscoredState))
def test_contributing_says_when_each_state_without_reward_is_right(state: str) -> None:
    told = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert f"\n  | `{state}` | " in told
