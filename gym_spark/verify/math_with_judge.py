"""`math_with_judge`: symbolic equality first; a model is asked only where that does not say yes."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from gym_spark.config import SamplingSpec
from gym_spark.verify.base import Judgeable, Verdict, answer_text
from gym_spark.verify.isolated import IsolatedPool
from gym_spark.verify.judging import Ask
from gym_spark.verify.llm_judge import LlmJudge
from gym_spark.verify.math_answer import MathAnswer


class MathWithJudge(LlmJudge):
    """Reward 1 if `math` says so, else what `llm_judge` says about equivalence.

    Scores: `symbolic` is what `math` said (absent where it could not: an expected answer that is no mathematics, a
    hang), `judge` what the judge said, where it was asked. An answer without text is 0 without asking.

    Args:
        symbolic_limit_s: Wall seconds of the symbolic part; what takes longer goes to the judge.
        template: As in `llm_judge`.
        system: A system message.
        swap: Ask once more with expected and given answer changed about; both must say yes.
        sampling: Of the judge.
    """

    name = "math_with_judge"
    version = f"1 judge={LlmJudge.version} math={MathAnswer.version}"
    needs = ("expected_answer",)

    def __init__(
        self,
        *,
        symbolic_limit_s: Annotated[float, Field(gt=0)] = 10.0,
        template: str | None = None,
        system: str | None = None,
        swap: bool = False,
        sampling: SamplingSpec = SamplingSpec(temperature=0.0),  # noqa: B008  frozen
    ) -> None:
        super().__init__(template=template, system=system, swap=swap, sampling=sampling)
        self._pool = IsolatedPool("math", {}, limit_s=symbolic_limit_s)
        # One thread: the pool has one child, and belongs to one thread at a time.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gym-spark-symbolic")

    async def aclose(self) -> None:
        """End the symbolic part: what it is at may go on to its time limit."""
        self._thread.shutdown(cancel_futures=True)
        self._pool.close()

    async def verify_with(self, item: Judgeable, ask: Ask) -> Verdict:
        """Judge: symbolically in a child process, which can be killed, and then by the model."""
        if not answer_text(item).strip():
            return Verdict.scored(0.0, detail={"reason": "the answer is empty"})
        bare = replace(item, request=None)  # the child needs no prompt
        symbolic = await asyncio.get_running_loop().run_in_executor(self._thread, self._symbolic, bare)
        scores = {} if symbolic.reward is None else {"symbolic": symbolic.reward}
        if symbolic.reward == 1.0:
            return replace(symbolic, scores=scores)
        judged = await super().verify_with(item, ask)
        scores["judge"] = judged.reward or 0.0
        why = {} if symbolic.reward is not None else {"symbolic": symbolic.detail.get("reason")}
        return replace(judged, scores=scores, detail=judged.detail | why, extracted_answer=symbolic.extracted_answer)

    def _symbolic(self, item: Judgeable) -> Verdict:
        return next(self._pool.judge([item]))
