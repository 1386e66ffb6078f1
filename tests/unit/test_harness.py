"""Harnesses by name: each mistake, in the name, the user's module or a parameter, is one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gym_spark.config import JsonObject, PartSpec
from gym_spark.errors import ConfigError
from gym_spark.harness.base import Episode, ModelCall, harness_names, load_harness
from gym_spark.harness.single_turn import SingleTurn


class Patient:
    """Takes parameters, and refuses one value of them."""

    def __init__(self, *, max_turns: int = 1) -> None:
        if max_turns == 0:
            raise SystemExit("no turns, no game")
        self.max_turns = max_turns

    async def run(self, params: JsonObject, call: ModelCall) -> Episode:
        return Episode((await call(params),), ())


class Idle:
    """Cannot play."""


def test_a_harness_is_found_by_its_name_or_its_class() -> None:
    assert "single_turn" in harness_names()
    assert isinstance(load_harness(PartSpec(name="single_turn")), SingleTurn)
    built = load_harness(PartSpec(name=f"{__name__}:Patient", params={"max_turns": "3"}))
    assert isinstance(built, Patient)
    assert built.max_turns == 3


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("single_trun", {}, "There is no harness 'single_trun'; did you mean 'single_turn'?"),
        ("", {}, "There is no harness ''"),
        (":x", {}, "cannot be imported from ':x' (ValueError"),
        ("no_such_module:H", {}, "(ModuleNotFoundError"),
        (f"{__name__}:Missing", {}, "(AttributeError"),
        (f"{__name__}:Idle", {}, "must be a class with an async method run"),
        (f"{__name__}:pytest", {}, "must be a class with an async method run"),
        (f"{__name__}:Patient", {"max_turn": 2}, "unknown key 'max_turn'; did you mean 'max_turns'?"),
        (f"{__name__}:Patient", {"max_turns": "many"}, "'max_turns' is \"many\""),
        (f"{__name__}:Patient", {"max_turns": 0}, "(SystemExit: no turns, no game)"),
        ("single_turn", {"temperature": 1}, "harness 'single_turn': unknown key 'temperature'"),
        ("broken_harness:H", {}, "(SyntaxError"),
        ("failing_harness:H", {}, "(ZeroDivisionError"),
    ],
)
def test_a_wrong_harness_is_one_config_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, params: dict[str, Any], message: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "broken_harness.py").write_text("class H(\n", encoding="utf-8")
    (tmp_path / "failing_harness.py").write_text("1 / 0\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_harness(PartSpec(name=name, params=params))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_a_harness_prints_at_import_goes_to_standard_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    text = "print('hello')\nclass H:\n    async def run(self, params, call): ...\n"
    (tmp_path / "chatty_harness.py").write_text(text, encoding="utf-8")
    load_harness(PartSpec(name="chatty_harness:H"))
    assert capsys.readouterr() == ("", "hello\n")
