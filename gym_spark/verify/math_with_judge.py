"""`math_with_judge`: symbolic equality first; a model is asked only where that says no."""

from __future__ import annotations

import asyncio
from typing import Final

from gym_spark.verify.base import Judgeable, Verdict
from gym_spark.verify.isolated import IsolatedPool
from gym_spark.verify.judging import Ask
from gym_spark.verify.llm_judge import LlmJudge
from gym_spark.verify.math_answer import MathAnswer

#: Wall seconds of the symbolic part; what takes longer goes to the judge.
_LIMIT_S: Final = 10.0


class MathWithJudge(LlmJudge):
    """Reward 1 if `math` says so, else what the judge says about equivalence; scores name both parts.

    Args:
        temperature: Of the judge.
        max_output_tokens: Of the judge.
    """

    name = "math_with_judge"
    version = f"1 math={MathAnswer.version}"
    needs = ("expected_answer",)

    def __init__(self, *, temperature: float = 0.0, max_output_tokens: int | None = None) -> None:
        super().__init__(task="equivalence", temperature=temperature, max_output_tokens=max_output_tokens)
        self._pool = IsolatedPool("math", {}, limit_s=_LIMIT_S)
        self._turn = asyncio.Lock()

    async def aclose(self) -> None:
        """End the child process of the symbolic part."""
        self._pool.close()

    async def verify_with(self, item: Judgeable, ask: Ask) -> Verdict:
        """Judge: symbolically in a child process, which can be killed, and then by the model."""
        async with self._turn:
            symbolic = await asyncio.to_thread(lambda: next(self._pool.judge([item])))
        if symbolic.reward == 1.0:
            return Verdict.scored(1.0, extracted_answer=symbolic.extracted_answer, scores={"symbolic": 1.0})
        judged = await super().verify_with(item, ask)
        if judged.reward is None:
            return judged
        scores = {"symbolic": 0.0, "judge": judged.reward}
        detail = judged.detail if symbolic.reward is not None else judged.detail | {"symbolic": symbolic.detail}
        extracted = symbolic.extracted_answer or judged.extracted_answer
        return Verdict.scored(judged.reward, extracted_answer=extracted, scores=scores, detail=detail)
