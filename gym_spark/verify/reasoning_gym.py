"""`reasoning_gym`: a task of Reasoning Gym, judged by the scorer that this library has for the task's data set.

A task is a row as the library and NeMo Gym have it: ``question``, ``answer`` and ``metadata``, whose ``source_dataset``
names the scorer. The answer is the last ``<answer>...</answer>``, or else the last box, or else the whole text. It is
extracted first, since many scorers give an answer that stands within other text a part of the credit by its length.
For the same reason only full credit is a success, unless `partial_credit`. The score ``score`` is the library's.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any, Final

from gym_spark.errors import ConfigError, RolloutError, boundary
from gym_spark.verify.base import Judgeable, Verdict, Verifier, answer_text
from gym_spark.verify.extraction import answer_at

_MISSING: Final = "The verifier 'reasoning_gym' needs a package: pip install 'gym-spark[reasoning-gym]'."


def _library_version() -> str:
    try:
        return version("reasoning-gym")
    except PackageNotFoundError:  # the class can be listed all the same
        return "absent"


class ReasoningGym(Verifier):
    """Reward 1 if the data set's scorer gives the answer full credit, else 0.

    Isolated, for scorers evaluate what the model wrote: as an expression, a program or a position in a game.

    Args:
        partial_credit: The reward is the library's score, between 0 and 1.
    """

    name = "reasoning_gym"
    version = f"2 reasoning-gym=={_library_version()}"
    isolated = True
    needs = ("question", "metadata")  # data sets with many right answers have no `answer`

    def __init__(self, *, partial_credit: bool = False) -> None:
        if find_spec("reasoning_gym") is None:
            raise ConfigError(_MISSING)
        self._partial_credit = partial_credit
        self._library: Any = None
        self._scorers: dict[str, Any] = {}

    def warm_up(self) -> None:
        """Import the library."""
        # Here and not at the top: it is optional, takes a second, and only the child process needs it.
        import reasoning_gym

        self._library = reasoning_gym

    def verify(self, item: Judgeable) -> Verdict:
        """Extract and score; a task that the library cannot score raises."""
        task = item.verifier_inputs
        metadata = task.get("metadata")
        data_set = metadata.get("source_dataset") if isinstance(metadata, dict) else None
        if not isinstance(data_set, str):
            raise ValueError("the task's metadata names no source_dataset")
        text = answer_text(item)
        answer = answer_at("tag", text) or answer_at("boxed", text) or text.strip()
        entry = {name: task.get(name) for name in ("question", "answer", "metadata")}
        scorer = self._scorer(data_set)
        try:
            with boundary("verifier"):
                score = float(scorer(answer=answer, entry=entry))
        except RolloutError as error:
            scorer(answer=task.get("answer"), entry=entry)  # raises where it is the task that cannot be scored
            return Verdict.scored(0.0, extracted_answer=answer, detail={"reason": f"the scorer refuses it: {error}"})
        reward = score if self._partial_credit else float(score == 1)
        return Verdict.scored(reward, extracted_answer=answer or None, scores={"score": score})

    def _scorer(self, data_set: str) -> Any:
        if data_set not in self._scorers:
            if self._library is None:
                self.warm_up()
            try:
                with boundary("verifier"):
                    self._scorers[data_set] = self._library.get_score_answer_fn(data_set)
            except RolloutError as error:
                raise ValueError(f"the task's source_dataset {data_set!r} cannot be scored ({error})") from error
        return self._scorers[data_set]
