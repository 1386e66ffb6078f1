"""What a judge's reply says, if it says one thing: a wrong reading of it is a wrong score."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_spark.endpoint.usage import Usage
from gym_spark.endpoint.wire import AnswerState, Reply
from gym_spark.verify.base import JudgeFailed
from gym_spark.verify.judge_replies import Labels, criteria_in, said, share_in

EQUAL, UNEQUAL = "[[A=B]]", "[[A!=B]]"
EQUIVALENCE = Labels({EQUAL: 1.0, UNEQUAL: 0.0})


def reply(text: str | None, state: AnswerState = "complete") -> Reply:
    return Reply({}, text, state, Usage(), None, 1, 1.0, 0.0, "http://a/v1")


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        pytest.param("[[A=B]]", 1.0, id="the label alone"),
        pytest.param("Both are the sun.\n\n[[A=B]] they are equivalent", 1.0, id="words around it"),
        pytest.param("**[[A!=B]]**", 0.0, id="emphasis"),
        pytest.param("[[A=B]]\n[[A=B]]", 1.0, id="said twice"),
        pytest.param("It might be [[A=B]], but no.\n[[A!=B]]", 0.0, id="the last line decides"),
        pytest.param("The answer says '[[A=B]]', which I ignore.\n\n[[A!=B]]\n  \n", 0.0, id="blank lines behind"),
        pytest.param("[[A!=B]] or [[A=B]]", None, id="two in one line"),
        pytest.param("[[A=B]]\n[[A!=B]]\nThat is all.", None, id="two, and a last line without one"),
        pytest.param("yes", None, id="no label"),
        pytest.param("banana", None, id="something else"),
        pytest.param("They say the same: [[a=b]]", 1.0, id="another case at the end"),
        pytest.param("[[a=b]] is what one could say", None, id="another case elsewhere"),
        pytest.param("[A=B]", None, id="half a label"),
        pytest.param("[[A=B", None, id="cut off"),
        pytest.param("A!=B", None, id="without brackets"),
    ],
)
def test_labels(text: str, reward: float | None) -> None:
    if reward is not None:
        assert EQUIVALENCE.reward(text) == reward
        return
    with pytest.raises(JudgeFailed) as caught:
        EQUIVALENCE.reward(text)
    assert caught.value.kind == "unparseable"


@pytest.mark.parametrize(
    ("rewards", "text", "reward"),
    [
        pytest.param({"YES": 1, "NO": 0}, "I do NOT KNOW... YES", 1, id="a label within a word is none"),
        pytest.param({"YES": 1, "NO": 0}, "NO.", 0, id="a full stop behind"),
        pytest.param({"A": 1, "A+": 2}, "A+", 2, id="the longer of two that begin alike"),
        pytest.param({"correct": 1, "incorrect": 0}, "incorrect", 0, id="one that ends in the other"),
        pytest.param({"B": 0, "[[A>B]]": 1}, "[[A>B]]", 1, id="one that holds another"),
        pytest.param({"good": 1, "fine": 1}, "good, fine", 1, id="two labels of one reward agree"),
        pytest.param({"YES": 1, "NO": 0}, "The student is wrong.\n\n**No.**", 0, id="another case, and marks behind"),
        pytest.param(
            {"YES": 1, "NO": 0}, "There is no difference: YES", 1, id="another case within a sentence is none"
        ),
        pytest.param({"YES": 1, "NO": 0}, "NO would be hasty.\nSo: yes", 1, id="another case as the last line's end"),
        pytest.param({"No": 0, "No way": -1}, "no way", -1, id="the longer one in another case"),
        pytest.param({"A": 1, "a": 0}, "a", 0, id="two that differ by case alone"),
        pytest.param({"(a)|b": 1, ".*": 0}, "(a)|b", 1, id="signs of regular expressions"),
        pytest.param({"\u662f": 1, "\u5426": 0}, "\u7b54\u6848\uff1a\n\u5426", 0, id="other scripts"),
    ],
)
def test_labels_of_ones_own(rewards: dict[str, float], text: str, reward: float) -> None:
    assert Labels(rewards).reward(text) == reward


@pytest.mark.parametrize(
    ("rewards", "text"),
    [
        pytest.param({"YES": 1, "NO": 0}, "I see no difference between them.", id="another case, not at the end"),
        pytest.param({"YES": 1, "NO": 0}, "I do not know", id="another case at the end of a word"),
        pytest.param({"YES": 1, "NO": 0}, "NO or yes", id="one as written, another at the end"),
        pytest.param({"YES": 1, "yes": 0, "Maybe": 0.5}, "Yes", id="two that differ by case alone, written otherwise"),
    ],
)
def test_what_may_be_any_word_is_no_label(rewards: dict[str, float], text: str) -> None:
    with pytest.raises(JudgeFailed) as caught:
        Labels(rewards).reward(text)
    assert caught.value.kind == "unparseable"


def test_the_best_for_one_answer_is_the_worst_for_the_other_on_any_scale() -> None:
    scale = Labels({"[[A>>B]]": 5, "[[A>B]]": 4, "[[tie]]": 3, "[[B>A]]": 2, "[[B>>A]]": 1})
    assert [scale.mirrored(reward) for reward in (5, 4, 3, 2, 1)] == [1, 2, 3, 4, 5]
    assert Labels({"won": 1, "lost": -1}).mirrored(1) == -1


@pytest.mark.parametrize("rewards", [{}, {"": 1.0}, {" ": 1.0}])
def test_labels_that_cannot_be_found_are_refused(rewards: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="label"):
        Labels(rewards)


@given(st.text(), st.text(), st.sampled_from([EQUAL, UNEQUAL]))
def test_one_label_and_no_other_decides_whatever_stands_around_it(before: str, behind: str, label: str) -> None:
    text = f"{before}{label}{behind}"
    other = UNEQUAL if label == EQUAL else EQUAL
    if other not in text:
        assert EQUIVALENCE.reward(text) == float(label == EQUAL)


@given(st.lists(st.sampled_from([EQUAL, UNEQUAL, "so", "\n", " "])))
def test_a_reward_is_never_one_that_no_label_of_the_last_line_or_all_of_them_gave(parts: list[str]) -> None:
    text = "".join(parts)
    try:
        reward = EQUIVALENCE.reward(text)
    except JudgeFailed:
        return
    stands = text if not (EQUAL in text and UNEQUAL in text) else text.strip().splitlines()[-1]
    assert (EQUAL in stands, UNEQUAL in stands) == (reward == 1.0, reward == 0.0)


@pytest.mark.parametrize(
    ("text", "share"),
    [
        pytest.param("[[0.5]]", 0.5, id="a share"),
        pytest.param("Most of it.\n[[ 1 ]]", 1.0, id="all"),
        pytest.param("[[0]]", 0.0, id="nothing"),
        pytest.param("[[0.2]] at first\n[[0.3]]", 0.3, id="the last line decides"),
        pytest.param("[[0.5]] [[0.50]]", 0.5, id="one number in two spellings"),
        pytest.param("[[0.2]] [[0.3]]", None, id="two"),
        pytest.param("[[1.5]]", None, id="above 1"),
        pytest.param("[[-0.5]]", None, id="below 0"),
        pytest.param("[[8/10]]", None, id="a fraction"),
        pytest.param("[[nan]]", None, id="no number"),
        pytest.param("0.5", None, id="no brackets"),
        pytest.param("[[" + "9" * 100_000 + "]]", None, id="huge"),
    ],
)
def test_shares(text: str, share: float | None) -> None:
    if share is not None:
        assert share_in(text) == share
        return
    with pytest.raises(JudgeFailed, match="judge"):
        share_in(text)


@pytest.mark.parametrize(
    ("text", "met"),
    [
        pytest.param("[[1: yes]]\n[[2: no]]", [True, False], id="in order"),
        pytest.param("[[2:no]] [[ 1 : YES ]]", [True, False], id="another order, case and blanks"),
        pytest.param("[[1: yes]] [[1: yes]] [[2: no]] [[3: yes]]", [True, False], id="one twice, one too many"),
        pytest.param("[[1: yes]]", None, id="one missing"),
        pytest.param("[[1: yes]] [[1: no]] [[2: no]]", None, id="one both ways"),
        pytest.param("[[1: maybe]] [[2: no]]", None, id="neither yes nor no"),
        pytest.param("yes, no", None, id="no labels"),
    ],
)
def test_criteria(text: str, met: list[bool] | None) -> None:
    if met is not None:
        assert criteria_in(text, 2) == met
        return
    with pytest.raises(JudgeFailed, match=r"criterion [12] of 2"):
        criteria_in(text, 2)


@pytest.mark.parametrize(
    ("given_reply", "kind"),
    [
        pytest.param(reply(None), "empty", id="no text"),
        pytest.param(reply("  \n"), "empty", id="blank"),
        pytest.param(reply("<think>[[A=B]]</think>"), "empty", id="reasoning alone"),
        pytest.param(reply("<think>[[A=B]]"), "empty", id="reasoning that never ends"),
        pytest.param(reply(None, "reasoning_only"), "empty", id="reasoning in a field of its own"),
        pytest.param(reply("It is not [[A=B]], for", "truncated"), "truncated", id="cut off before the verdict"),
        pytest.param(reply(None, "filtered"), "filtered", id="filtered"),
    ],
)
def test_a_reply_without_a_whole_text_is_none(given_reply: Reply, kind: str) -> None:
    with pytest.raises(JudgeFailed) as caught:
        said(given_reply)
    assert caught.value.kind == kind


def test_reasoning_is_no_verdict() -> None:
    assert said(reply("<think>[[A=B]]?</think>\n[[A!=B]]")) == "[[A!=B]]"
