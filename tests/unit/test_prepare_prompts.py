"""Templates are filled safely, and no item is its own example."""

import pytest

from gym_spark.errors import ConfigError
from gym_spark.prepare.prompts import FewShotSpec, PromptSpec, Shot, ShotPool, messages, read_prompt_config, render


def test_values_with_braces_go_in_as_they_are_and_doubled_braces_are_literal():
    fields = {"question": r"Is \frac{1}{2} in {question}?", "choices": ["é", 1], "n": 3}
    assert render("{{x}} {question} {choices} {n}", fields, "row 1") == (r'{x} Is \frac{1}{2} in {question}? ["é",1] 3')


def test_missing_field_names_row_field_and_the_nearest():
    with pytest.raises(ConfigError, match=r"row 3: the prompt uses the field 'qestion'; did you mean 'question'\?"):
        render("{qestion}", {"question": "?", "hint": "!"}, "row 3")
    with pytest.raises(ConfigError, match=r"'zzz'; known: hint, question"):
        render("{zzz}", {"question": "?", "hint": "!"}, "row 3")
    with pytest.raises(ConfigError, match="'hint', which is null"):
        render("{hint}", {"hint": None}, "row 3")


def test_system_shots_and_question_stand_in_order():
    prompt = PromptSpec(system="As {role}.", user="{q}")
    built = messages(prompt, {"role": "a judge", "q": "2+2?"}, "2+2?", [Shot("1+1?", "2")], "row 1")
    assert [(turn["role"], turn["content"]) for turn in built["input"]] == [
        ("system", "As a judge."),
        ("user", "1+1?"),
        ("assistant", "2"),
        ("user", "2+2?"),
    ]


def test_p04_no_item_and_no_copy_of_it_is_its_own_example():
    shots = [
        Shot("Capital of France?", "Paris"),
        Shot("capital  of france?", "Lyon"),
        Shot("1+1?", "2"),
        Shot("2+2?", "4"),
    ]
    pool = ShotPool(FewShotSpec(count=2), shots)
    for shot in shots:
        picked = pool.pick(shot.user)
        assert len(picked) == 2
        assert shot.user.casefold().split() not in [other.user.casefold().split() for other in picked]


def test_few_shot_pick_follows_the_seed_and_not_the_order():
    shots = [Shot(f"{n}+{n}?", str(2 * n)) for n in range(30)]
    picks = {seed: ShotPool(FewShotSpec(count=4, seed=seed), shots).pick("other?") for seed in range(5)}
    assert len({tuple(pick) for pick in picks.values()}) == 5
    assert ShotPool(FewShotSpec(count=4, seed=3), shots[::-1]).pick("other?") == picks[3]


def test_too_few_examples_say_how_many_there_are():
    pool = ShotPool(FewShotSpec(count=2), [Shot("1+1?", "2"), Shot("2+2?", "4")])
    assert len(pool.pick("3+3?")) == 2
    with pytest.raises(ConfigError, match="has 1 other questions with an answer; ask for 1 or fewer"):
        pool.pick("1+1?")


def test_prompt_config_is_read_and_its_mistakes_named(tmp_path):
    file = tmp_path / "prompt.yaml"
    file.write_text("system: Be brief.\nuser: '{question}'\nfew_shot: {count: 2, seed: 7}\n")
    assert read_prompt_config(file) == PromptSpec(
        system="Be brief.", user="{question}", few_shot=FewShotSpec(count=2, seed=7)
    )
    file.write_text("usr: '{question}'\n")
    with pytest.raises(ConfigError, match=r"prompt\.yaml: .*unknown key 'usr'; did you mean 'user'"):
        read_prompt_config(file)
    with pytest.raises(ConfigError, match="no file"):
        read_prompt_config(tmp_path / "none.yaml")
