"""`llm_judge`: a model says whether an answer is right, how well it meets a rubric, or which of two is better."""

from __future__ import annotations

from typing import Any, Final

from gym_spark.config import JsonObject, SamplingSpec
from gym_spark.verify.base import Judgeable, Verdict, answer_text, expected_answers
from gym_spark.verify.extraction import Place, answer_at
from gym_spark.verify.judge_prompts import (
    END_WITH_CRITERIA,
    END_WITH_SHARE,
    TEMPLATES,
    JudgeTask,
    check_template,
    filled,
)
from gym_spark.verify.judge_replies import Labels, criteria_in, said, share_in
from gym_spark.verify.judging import Ask, JudgeVerifier

_LABELS: Final[dict[str, dict[str, float]]] = {
    "equivalence": {"[[A=B]]": 1.0, "[[A!=B]]": 0.0},
    "pairwise": {"[[A]]": 1.0, "[[B]]": 0.0, "[[tie]]": 0.5},
}


class LlmJudge(JudgeVerifier):
    """Ask a model for the verdict (`judge_replies` says how its reply is read). An empty answer is 0 without asking.

    - ``equivalence``: reward 1 if the answer says the same as `expected_answer`, or as one of them.
    - ``rubric``: the task's `rubric` is a text, and the reward the share of it that the judge says is met; or a list of
      criteria (texts, or objects with `criterion` and `weight`), and the reward is the weight of those that are met.
    - ``pairwise``: reward 1 if the answer is better than the task's `reference_answer`, 0.5 for a tie.

    Args:
        task: Which of them.
        template: A prompt of your own, with the places of `judge_prompts.TEMPLATES`.
        system: A system message.
        labels: Labels and their rewards in place of the built-in ones; your template names them. Not for ``rubric``.
        swap: Ask once more with the two answers changed about, since models favour a place: in ``pairwise`` the mean
            counts, in ``equivalence`` both must say yes.
        answer_from: Where in the text the answer stands that is judged; the whole text where nothing stands there.
        sampling: Of the judge.
    """

    name = "llm_judge"
    version = "2"
    needs_prompt = True

    def __init__(
        self,
        *,
        task: JudgeTask = "equivalence",
        template: str | None = None,
        system: str | None = None,
        labels: dict[str, float] | None = None,
        swap: bool = False,
        answer_from: Place = "full_response",
        sampling: SamplingSpec = SamplingSpec(temperature=0.0),  # noqa: B008  frozen
    ) -> None:
        self._task = task
        self._template = TEMPLATES[task] if template is None else template
        check_template(task, self._template)
        if task == "rubric" and (labels is not None or swap):
            raise ValueError("a rubric has no labels and nothing to swap")
        self._labels = Labels(_LABELS.get(task, {"-": 0.0}) if labels is None else labels)
        self._system = system
        self._swap = swap
        self._answer_from = answer_from
        self.sampling = sampling

    async def verify_with(self, item: Judgeable, ask: Ask) -> Verdict:
        """Judge one rollout."""
        judging = {"equivalence": self._equivalence, "rubric": self._rubric, "pairwise": self._pairwise}[self._task]
        text = answer_text(item).strip()
        found = None if self._answer_from == "full_response" else answer_at(self._answer_from, text)
        return await judging(item, found or text, found or None, ask)

    async def _equivalence(self, item: Judgeable, answer: str, extracted: str | None, ask: Ask) -> Verdict:
        expected = _one_of(expected_answers(item))
        if not answer:
            return _empty()
        reward = await self._labelled(item, ask, expected_answer=expected, generated_answer=answer)
        if self._swap and reward > 0:
            reward = min(reward, await self._labelled(item, ask, expected_answer=answer, generated_answer=expected))
        return Verdict.scored(reward, extracted_answer=extracted)

    async def _pairwise(self, item: Judgeable, answer: str, extracted: str | None, ask: Ask) -> Verdict:
        other = _text(item, "reference_answer")
        if not answer:
            return _empty()
        first = await self._labelled(item, ask, answer_a=answer, answer_b=other)
        if not self._swap:
            return Verdict.scored(first, extracted_answer=extracted)
        second = self._labels.mirrored(await self._labelled(item, ask, answer_a=other, answer_b=answer))
        scores = {"as_a": first, "as_b": second}
        return Verdict.scored((first + second) / 2, extracted_answer=extracted, scores=scores)

    async def _rubric(self, item: Judgeable, answer: str, extracted: str | None, ask: Ask) -> Verdict:
        criteria = _criteria(item)
        if not answer:
            return _empty()
        if criteria is None:
            rubric, end = _text(item, "rubric"), END_WITH_SHARE
        else:
            rubric, end = (
                "\n".join(f"{at}. {text}" for at, (text, _) in enumerate(criteria, start=1)),
                END_WITH_CRITERIA,
            )
        reply = await self._said(item, ask, rubric=rubric, generated_answer=answer, how_to_end=end)
        if criteria is None:
            return Verdict.scored(share_in(reply), extracted_answer=extracted)
        met = criteria_in(reply, len(criteria))
        weights = [weight for _, weight in criteria]
        share = sum(weight for weight, is_met in zip(weights, met, strict=True) if is_met) / sum(weights)
        return Verdict.scored(share, extracted_answer=extracted, detail={"criteria_met": met})

    async def _labelled(self, item: Judgeable, ask: Ask, **texts: str) -> float:
        return self._labels.reward(await self._said(item, ask, **texts))

    async def _said(self, item: Judgeable, ask: Ask, **texts: str) -> str:
        params: JsonObject = {"input": filled(self._template, texts | {"question": item.question})}
        return said(await ask(params if self._system is None else params | {"instructions": self._system}))


def _empty() -> Verdict:
    return Verdict.scored(0.0, detail={"reason": "the answer is empty"})


def _one_of(accepted: list[str]) -> str:
    return accepted[0] if len(accepted) == 1 else "\n".join(["any one of these:", *(f"- {text}" for text in accepted)])


def _text(item: Judgeable, key: str) -> str:
    value = item.verifier_inputs.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"the task's {key} is {value!r}; it must be text")
    return value


def _criteria(item: Judgeable) -> list[tuple[str, float]] | None:
    """Return a rubric's criteria with their weights; None where it is no list."""
    rubric = item.verifier_inputs.get("rubric")
    if not isinstance(rubric, list):
        return None
    if not rubric:
        raise ValueError("the task's rubric is an empty list")
    return [_criterion(each) for each in rubric]


def _criterion(each: Any) -> tuple[str, float]:
    text, weight = (each.get("criterion"), each.get("weight", 1)) if isinstance(each, dict) else (each, 1)
    is_weight = isinstance(weight, int | float) and not isinstance(weight, bool) and 0 < weight < float("inf")
    if not isinstance(text, str) or not text.strip() or not is_weight:
        raise ValueError(f"the task's rubric has the criterion {each!r}; it must be text, with a weight above 0 if any")
    return text, float(weight)
