"""What a verifier is: a `Judgeable` enters, a `Verdict` leaves; the registry that finds one by name.

A verifier is one small module with one class and one line in `_BUILTIN`. Other packages register theirs under the entry
point group ``gym_spark.verifiers``; a user's own class is named ``module:Class``. This module is on the CLI's start-up
path and on every worker: it imports no verifier, no pyspark and no heavy library.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, get_args

from gym_spark.config import EndpointSpec, JsonObject, digest
from gym_spark.errors import ConfigError, GymSparkError, RolloutError, boundary
from gym_spark.plugins import Registry, users_code
from gym_spark.verify.sandbox.base import Sandbox
from gym_spark.verify.sandbox.choice import OFF, choose

VerdictState = Literal["scored", "judge_failed", "verify_timeout", "verifier_error", "not_scored"]
UnscoredState = Literal["judge_failed", "verify_timeout", "verifier_error", "not_scored"]
Mode = Literal["stateless", "judge", "live_session", "unknown"]

ENTRY_POINT_GROUP: Final = "gym_spark.verifiers"

#: name -> where its class is, and one line for ``gym-spark list verifiers``. Text, so that listing imports nothing.
_BUILTIN: Final[dict[str, tuple[str, str]]] = {
    "code_tests": ("gym_spark.verify.code_tests:CodeTests", "the answer's code passes the tests, in a sandbox"),
    "exact_match": ("gym_spark.verify.exact:ExactMatch", "the whole answer equals an accepted text"),
    "instruction_following": (
        "gym_spark.verify.instruction_following:InstructionFollowing",
        "every instruction of the prompt is followed, strictly or loosely (IFEval)",
    ),
    "json_schema": ("gym_spark.verify.json_schema:JsonSchema", "the answer is a document that a JSON Schema allows"),
    "llm_judge": ("gym_spark.verify.llm_judge:LlmJudge", "a model judges: equivalence, a rubric, or which is better"),
    "math": ("gym_spark.verify.math_answer:MathAnswer", "symbolic equality, by math-verify in a child process"),
    "math_with_judge": (
        "gym_spark.verify.math_with_judge:MathWithJudge",
        "symbolic equality first; a model judges only where that says no",
    ),
    "mcqa": ("gym_spark.verify.multiple_choice:MultipleChoice", "the option that the answer chose is the expected one"),
    "numeric": ("gym_spark.verify.numeric:Numeric", "the last number in the answer equals the expected number"),
    "reasoning_gym": (
        "gym_spark.verify.reasoning_gym:ReasoningGym",
        "full credit by Reasoning Gym's scorer of the task",
    ),
    "remote": ("gym_spark.verify.remote:Remote", "a NeMo Gym resources server judges, over its /verify"),
    "string_match": (
        "gym_spark.verify.string_match:StringMatch",
        "the extracted answer equals, contains or matches a text",
    ),
    "tool_call_match": (
        "gym_spark.verify.tool_call:ToolCallMatch",
        "the answer's function calls are the expected ones",
    ),
}


@dataclass(frozen=True, slots=True)
class Judgeable:
    """What a verifier may see of a rollout."""

    task_id: str
    rollout_index: int
    #: What the task says about its right answer, for instance ``{"expected_answer": "4"}``.
    verifier_inputs: JsonObject
    output_text: str | None
    #: ``complete``, ``truncated``, ``reasoning_only``, ``empty`` or ``filtered``.
    answer_state: str | None
    #: The answer as a Responses API object; None unless the verifier declares `needs_response`.
    response: JsonObject | None
    environment_reward: float | None
    #: What the model was asked, Responses API parameters; None unless the verifier declares `needs_prompt`.
    request: JsonObject | None = None

    @property
    def question(self) -> str:
        """What the model was asked: the task's own `question` where it has one, else the last message of the user."""
        own = self.verifier_inputs.get("question")
        if isinstance(own, str) and own.strip():
            return own
        given = (self.request or {}).get("input")
        messages = given if isinstance(given, list) else [{"role": "user", "content": given}]
        users = [each.get("content") for each in messages if isinstance(each, dict) and each.get("role") == "user"]
        content = users[-1] if users else None
        if isinstance(content, list):
            texts = [part.get("text") for part in content if isinstance(part, dict)]
            content = "\n".join(text for text in texts if isinstance(text, str))
        return content if isinstance(content, str) else ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One verdict on one rollout. The reward is a finite number if the state is ``scored``, and None otherwise."""

    state: VerdictState
    reward: float | None
    extracted_answer: str | None = None
    scores: dict[str, float] = field(default_factory=dict)
    #: Evidence, as JSON; ``{"reason": ...}`` where not scored.
    detail: JsonObject = field(default_factory=dict)

    @staticmethod
    def scored(
        reward: float,
        *,
        extracted_answer: str | None = None,
        scores: Mapping[str, float] | None = None,
        detail: JsonObject | None = None,
    ) -> Verdict:
        """Return a scored verdict; a reward that is no finite number is a bug, so ``verifier_error``, never 0."""
        return Verdict("scored", reward, extracted_answer, dict(scores or {}), detail or {}).checked()

    @staticmethod
    def unscored(state: UnscoredState, reason: str) -> Verdict:
        """Return a verdict without reward."""
        return Verdict(state, None, detail={"reason": reason})

    def checked(self) -> Verdict:
        """Return this verdict as the table can hold it, or a ``verifier_error`` that says what is wrong with it.

        Half a surrogate pair, which an answer can hold and UTF-8 cannot, becomes "?" in its texts.
        """
        fault = self._fault()
        if fault is not None:
            return Verdict.unscored("verifier_error", f"the verifier {fault}")
        reward = float(self.reward or 0.0) if self.state == "scored" else None
        extracted = None if self.extracted_answer is None else _storable(self.extracted_answer)
        scores = {name: float(value) for name, value in self.scores.items()}
        detail = json.loads(_storable(json.dumps(self.detail, ensure_ascii=False, allow_nan=False)))
        return Verdict(self.state, reward, extracted, scores, detail)

    def _fault(self) -> str | None:
        """Return what is wrong with the values, the detail's JSON apart. Each is shown shortened: it may be huge."""
        if self.state not in get_args(VerdictState):
            return f"returned the unknown state {reprlib.repr(self.state)}"
        if not isinstance(self.extracted_answer, str | None):
            return f"extracted {reprlib.repr(self.extracted_answer)}, not text"
        for what, value in {"scores": self.scores, "detail": self.detail}.items():
            if not isinstance(value, dict):
                return f"returned {reprlib.repr(value)} as {what}, not a dict"
        for name, score in self.scores.items():
            if not isinstance(name, str) or _storable(name) != name:
                return f"named a score {reprlib.repr(name)}, which is not text"
            if not _is_finite(score):
                return f"returned the score {reprlib.repr(name)} {reprlib.repr(score)}"
        if self.state == "scored" and not _is_finite(self.reward):
            return f"returned the reward {reprlib.repr(self.reward)}"
        return None


def _is_finite(value: Any) -> bool:
    # numpy's scalars have __float__ too; text has not, so "1" is refused.
    return hasattr(value, "__float__") and math.isfinite(float(value))


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


class JudgeFailed(RolloutError):
    """A server that was asked for a verdict gave none that can be used; the row is ``judge_failed``.

    Its `kind` says in which way: ``unparseable``, ``empty``, ``truncated``, ...
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(kind, message, stage="judge")


class Verifier(ABC):
    """Base of every verifier: a pure function of one rollout, unless `mode` says otherwise.

    Parameters are the constructor's keyword arguments; their annotations are the validation rules.
    """

    name: ClassVar[str]
    #: Raised whenever a verdict may change; contains the version of a library that decides.
    version: ClassVar[str] = "1"
    mode: ClassVar[Mode] = "stateless"
    #: True: may hang or take the process down, so it runs in a child process that can be killed.
    isolated: ClassVar[bool] = False
    #: True: reads `Judgeable.response`, which is large and otherwise neither sent to the workers nor parsed.
    needs_response: ClassVar[bool] = False
    #: True: reads `Judgeable.request`, which is not sent to the workers otherwise.
    needs_prompt: ClassVar[bool] = False
    #: True: asks a model, whose endpoint is `RunSpec.judge`.
    needs_judge: ClassVar[bool] = False
    #: Keys that every task's `verifier_inputs` must have; prepare refuses a row without, before a rollout is paid for.
    needs: ClassVar[tuple[str, ...]] = ()
    #: True: runs code that a model wrote. It then judges only with ``--sandbox``, which `use_sandbox` hands to it.
    wants_sandbox: ClassVar[bool] = False

    def use_sandbox(self, sandbox: Sandbox) -> None:
        """Take the sandbox; called before `warm_up` where `wants_sandbox` is set, and nowhere else."""
        raise NotImplementedError(f"{type(self).__name__} wants a sandbox, but does not define use_sandbox")

    def warm_up(self) -> None:  # noqa: B027  optional on purpose
        """Import and cache what the first verdict would pay for; called once, outside any time limit."""

    @abstractmethod
    def verify(self, item: Judgeable) -> Verdict:
        """Judge one rollout; whatever it raises becomes ``verifier_error``."""


def judge_one(verifier: Verifier, item: Judgeable) -> Verdict:
    """Return the verifier's checked verdict, or ``verifier_error`` with the message of what it raised."""
    try:
        with boundary("verifier"):
            verdict = verifier.verify(item)
            if not isinstance(verdict, Verdict):
                raise TypeError(f"the verifier returned {type(verdict).__name__}, not a Verdict")
            return verdict.checked()
    except GymSparkError as error:
        return Verdict.unscored("verifier_error", _storable(str(error)))


def expected_answers(item: Judgeable) -> list[str]:
    """Return the accepted answers of a task, at least one.

    Raises:
        ValueError: `expected_answer` is absent, empty, or neither text, number nor a list of these.
    """
    expected = item.verifier_inputs.get("expected_answer")
    accepted = expected if isinstance(expected, list) else [expected]
    for answer in accepted:
        if isinstance(answer, bool) or not isinstance(answer, str | int | float) or answer == "":
            raise ValueError(f"the task's expected_answer is {expected!r}; it must be text, a number or a list of them")
    if not accepted:
        raise ValueError("the task's expected_answer is an empty list")
    return [str(answer) for answer in accepted]


#: ``<think>`` or ``<thinking>`` in either case, and ``[THINK]`` as Mistral's models write it.
_REASONING_TAG: Final = re.compile(
    r"<(?P<closing>/?)think(?:ing)?[ \t]*+>|(?P<square>\[)(?P<closing_square>/?)(?-i:THINK)\]", re.IGNORECASE
)


def answer_text(item: Judgeable) -> str:
    """Return the answer without the model's reasoning; the only place where reasoning is removed from text.

    ``<think>...</think>`` (or ``<thinking>``, or ``[THINK]...[/THINK]``) goes. With only a closing tag everything
    before it goes: the opening one was part of the prompt. With only an opening tag nothing is left: the reply was cut
    off before its answer. A tag mentioned inside the reasoning does not nest. A closing tag at the very end, behind
    reasoning that was closed and an answer, is a slip, and goes alone. One pass, linear in the text.
    """
    return without_reasoning(item.output_text or "")


def without_reasoning(text: str) -> str:
    """Return a model's text without its reasoning, as :func:`answer_text` says."""
    kept, start, inside = list[str](), 0, ""
    may_slip, end = False, len(text.rstrip())
    for tag in _REASONING_TAG.finditer(text):
        kind = "[" if tag["square"] else "<"
        if not (tag["closing"] or tag["closing_square"]):
            may_slip = not inside  # a tag that is opened within may be the one that is closed at the end
            if not inside:
                kept.append(text[start : tag.start()])
                inside = kind
        elif inside in ("", kind):
            if not inside and may_slip and tag.end() == end:
                kept.append(text[start : tag.start()])
            elif not inside:
                kept.clear()
            inside, start = "", tag.end()
    return "" if inside else "".join(kept) + text[start:]


_REGISTRY: Final[Registry[Verifier]] = Registry(
    "verifier",
    ENTRY_POINT_GROUP,
    _BUILTIN,
    fits=lambda found: issubclass(found, Verifier),
    wanted="a subclass of gym_spark.verify.base.Verifier",
)


def verifier_descriptions() -> dict[str, str]:
    """Return one line per registered verifier, sorted by name, without importing any."""
    return _REGISTRY.descriptions()


def told_verifier(name: str) -> JsonObject:
    """Return a verifier's description, documentation and parameters, as `plugins.Registry.told`.

    Raises:
        ConfigError: Unknown name, or a class that cannot be imported or is no `Verifier`.
    """
    return _REGISTRY.told(name)


def load_verifier(name: str, params: Mapping[str, Any]) -> Verifier:
    """Build the verifier that `name` stands for: registered, from an entry point, or ``module:Class``.

    Raises:
        ConfigError: Unknown name, class that cannot be imported or is no `Verifier`, wrong parameter.
    """
    return _REGISTRY.build(name, params)


def check_sandbox(name: str, verifier: Verifier, setting: str) -> None:
    """Refuse, before anything is paid for, a verifier that would have to run code without a sandbox.

    Args:
        name: Of the verifier, for the message.
        verifier: The verifier.
        setting: ``RunSpec.sandbox``.

    Raises:
        ConfigError: It runs code that a model wrote, and the sandbox is off or does not hold on this machine.
    """
    if not verifier.wants_sandbox:
        return
    if setting == OFF:
        raise ConfigError(
            f"The verifier '{name}' runs code that the model wrote, which is off unless asked for; "
            "add --sandbox auto (docs/sandbox.md says what that holds off)."
        )
    choose(setting)


def check_judge(name: str, verifier: Verifier, judge: EndpointSpec | None) -> None:
    """Refuse, before anything is paid for, a verifier that would have nobody to ask.

    Raises:
        ConfigError: It asks a model, and there is no judge; or the judge has a budget, which nobody would keep.
    """
    if not verifier.needs_judge:
        return
    if judge is None:
        raise ConfigError(
            f"The verifier '{name}' asks a model; name its endpoint with --judge-url and --judge-model, or take the "
            "small local model with --set judge={} (further settings: judge.* as endpoint.*)."
        )
    if judge.budget is not None:
        raise ConfigError(
            "A judge's budget is not kept; leave judge.budget out, and bound the run with endpoint.budget."
        )


def warm_up(name: str, verifier: Verifier, sandbox: str = OFF) -> None:
    """Warm a verifier up where it will judge, with the sandbox that it wants.

    Raises:
        ConfigError: The warm-up failed, for instance for want of a library or a sandbox.
    """
    check_sandbox(name, verifier, sandbox)
    if verifier.wants_sandbox:
        verifier.use_sandbox(choose(sandbox))
    with users_code(f"The verifier '{name}' cannot start"):
        verifier.warm_up()


def needed_inputs(name: str) -> tuple[str, ...]:
    """Return the keys of `verifier_inputs` that a verifier needs; none where a user's class is not on this machine.

    Raises:
        ConfigError: no verifier has this name.
    """
    try:
        return _REGISTRY.part_class(name).needs
    except ConfigError:
        if ":" not in name:
            raise
        return ()


def verifier_digest(name: str, params: Mapping[str, Any], judge: EndpointSpec | None = None) -> str:
    """Return the digest of what decides a verdict: name, parameters, version with its libraries', model of a judge."""
    verifier = load_verifier(name, params)
    decides: JsonObject = {"name": name, "params": dict(params), "version": verifier.version}
    if verifier.needs_judge and judge is not None:
        decides["judge"] = {"model": judge.model, "api": judge.api}
    return digest(decides)
