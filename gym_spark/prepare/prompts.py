"""Prompts: a template and a task's fields come in, the `input` messages of a request leave.

A template is text with ``{field}`` places; ``{{`` and ``}}`` stand for literal braces. A field's value is put in as it
is and never read as a template itself, so braces in a problem are safe.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator

from gym_spark.config import JsonObject, Spec, canonical_json, digest, validate
from gym_spark.errors import ConfigError, did_you_mean
from gym_spark.layers import read_yaml


class FewShotSpec(Spec):
    """Solved examples of the same split that stand before the question."""

    count: Annotated[int, Field(ge=1)]
    seed: int = 0


class PromptSpec(Spec):
    """How a task is put to the model. Part of the tasks' content, so of a run's identity."""

    system: str | None = None
    user: Annotated[str, Field(min_length=1)]
    few_shot: FewShotSpec | None = None

    @field_validator("system", "user")
    @classmethod
    def _readable(cls, template: str | None) -> str | None:
        if template is not None:
            template_fields(template)
        return template

    def fields(self) -> list[str]:
        """Return the names of the fields that the templates use, in order of first use."""
        return list(dict.fromkeys([*template_fields(self.system or ""), *template_fields(self.user)]))


@dataclass(frozen=True, slots=True)
class Shot:
    """One solved example: the user's message and the assistant's."""

    user: str
    answer: str


class ShotPool:
    """The examples that few-shot prompts draw from.

    Examples are ranked by a seeded hash of their content, so the pick does not depend on the order of the source, and
    all tasks share the same head of the prompt (which endpoints cache) but those that are examples themselves: an item,
    or a copy of it, never stands in its own prompt.
    """

    def __init__(self, spec: FewShotSpec, candidates: Iterable[Shot]) -> None:
        ranked = sorted(candidates, key=lambda shot: digest([spec.seed, shot.user, shot.answer], 64))
        distinct = {_question_key(shot.user): shot for shot in reversed(ranked)}
        # Questions are distinct, so at most one is left out of a pick: one spare is enough.
        self._shots = [shot for shot in ranked if distinct[_question_key(shot.user)] is shot][: spec.count + 1]
        self._count = spec.count

    def pick(self, question: str) -> list[Shot]:
        """Return the examples for one question.

        Raises:
            ConfigError: there are fewer other solved questions than the prompt asks for.
        """
        own = _question_key(question)
        shots = [shot for shot in self._shots if _question_key(shot.user) != own][: self._count]
        if len(shots) < self._count:
            remedy = f"ask for {len(shots)} or fewer" if shots else "leave few_shot out"
            raise ConfigError(
                f"few_shot.count is {self._count}, but the split has {len(shots)} other questions with an answer; "
                f"{remedy}."
            )
        return shots


def _question_key(text: str) -> str:
    return " ".join(text.split()).casefold()


def template_fields(template: str) -> list[str]:
    """Return the field names of a template in order, repeats included.

    Raises:
        ValueError: a lone brace, or a place that is more than a plain name.
    """
    try:
        pieces = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"{error}; write literal braces as {{{{ and }}}}") from error
    names = []
    for _, name, form, conversion in pieces:
        if name is None:
            continue
        if form or conversion or not name.isidentifier():
            raise ValueError(f"'{{{name}}}' is not a plain {{field}}; write literal braces as {{{{ and }}}}")
        names.append(name)
    return names


def render(template: str, fields: Mapping[str, Any], where: str) -> str:
    """Put a row's fields into a template; what is not text goes in as JSON.

    Args:
        template: A template that `PromptSpec` has checked.
        fields: The row's values by name.
        where: What the user would call the row, for the message.

    Raises:
        ConfigError: the template uses a field that the row lacks, or whose value is null.
    """
    parts = []
    for literal, name, _, _ in string.Formatter().parse(template):
        parts.append(literal)
        if name is None:
            continue
        if name not in fields:
            raise ConfigError(f"{where}: the prompt uses the field '{name}'{did_you_mean(name, fields)}")
        value = fields[name]
        if value is None:
            raise ConfigError(
                f"{where}: the prompt uses the field '{name}', which is null; mend the row or the prompt."
            )
        parts.append(value if isinstance(value, str) else canonical_json(value))
    return "".join(parts)


def messages(prompt: PromptSpec, fields: Mapping[str, Any], user: str, shots: Iterable[Shot], where: str) -> JsonObject:
    """Build a task's `responses_create_params`.

    Args:
        prompt: The prompt; its `system` template is rendered here.
        fields: The row's values by name.
        user: The rendered user message.
        shots: Examples that stand between the system message and the user's.
        where: What the user would call the row, for the message.
    """
    turns = [] if prompt.system is None else [_message("system", render(prompt.system, fields, where))]
    for shot in shots:
        turns += [_message("user", shot.user), _message("assistant", shot.answer)]
    return {"input": [*turns, _message("user", user)]}


def _message(role: str, content: str) -> JsonObject:
    return {"role": role, "content": content}


def read_prompt_config(path: Path) -> PromptSpec:
    """Read the file of ``--prompt-config``: YAML with `user`, and optionally `system` and `few_shot`."""
    return validate(PromptSpec, read_yaml(path), str(path))
