"""Parts by name: "numeric", an installed entry point or ``module:Class`` comes in, a built part leaves.

Verifiers and harnesses alike. Nothing is imported before it is asked for: this is on the CLI's start-up path.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar, cast, get_type_hints

from pydantic import BaseModel, create_model
from pydantic_core import to_jsonable_python

from gym_spark.config import JsonObject, Spec, validate
from gym_spark.errors import ConfigError, RolloutError, boundary, did_you_mean

PartT = TypeVar("PartT")


@contextlib.contextmanager
def users_code(failure: str, consequence: str = "") -> Iterator[None]:
    """Run a user's code on the driver: what it prints goes to stderr, what it raises becomes one sentence.

    Standard output belongs to the command's result, which may be JSON. The traceback stays chained to the error.

    Args:
        failure: Begins the sentence, for instance "The harness 'x' cannot be imported".
        consequence: Ends it, for instance "; nothing was stored".

    Raises:
        ConfigError: the code raised anything, or called ``sys.exit``.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr), boundary("part"):
            yield
    except RolloutError as error:
        raise ConfigError(f"{failure} ({' '.join(str(error).split())}){consequence}.") from error


@dataclass(frozen=True, slots=True)
class Registry(Generic[PartT]):
    """The known parts of one kind, and how one is built."""

    #: What a message calls one: "verifier", "harness".
    kind: str
    #: Group under which other packages register theirs.
    entry_points: str
    #: name -> where its class is, and one line about it. Text, so that listing imports nothing.
    built_in: Mapping[str, tuple[str, str]]
    #: Tells whether a class is one of this kind, and what a class must be.
    fits: Callable[[type], bool]
    wanted: str

    def descriptions(self) -> dict[str, str]:
        """Return one line per registered part, sorted by name."""
        installed = {name: f"from {target}" for name, target in self._installed().items()}
        return dict(sorted((installed | {name: line for name, (_, line) in self.built_in.items()}).items()))

    def told(self, name: str) -> JsonObject:
        """Return all that a part says about itself, for ``gym-spark list``.

        Returns:
            `name`; `description`, the one line about it; `documentation`, the class's docstring, empty where it has
            none; and `parameters`, name -> `type`, and `default` for one that may be left out.

        Raises:
            ConfigError: as :meth:`part_class`; or the parameters' annotations cannot be read.
        """
        found = self.part_class(name)
        with users_code(f"The parameters of the {self.kind} '{name}' cannot be read"):
            parameters = {key: _told(*of) for key, of in _parameters(found, bounds=False).items()}
        return {
            "name": name,
            "description": self.descriptions().get(name, f"from {name}"),
            "documentation": inspect.cleandoc(found.__doc__ or ""),
            "parameters": parameters,
        }

    def part_class(self, name: str) -> type[PartT]:
        """Import the class that `name` stands for.

        Raises:
            ConfigError: unknown name, or a class that cannot be imported or is not of this kind.
        """
        installed = self._installed()
        target = self.built_in[name][0] if name in self.built_in else installed.get(name, name)
        module, colon, attribute = target.partition(":")
        if not colon:
            raise ConfigError(f"There is no {self.kind} '{name}'{did_you_mean(name, self.descriptions())}")
        with users_code(f"The {self.kind} '{name}' cannot be imported from '{target}'"):
            found = getattr(importlib.import_module(module), attribute)
        if not (inspect.isclass(found) and self.fits(found)):
            raise ConfigError(f"The {self.kind} '{name}' ({target}) must be {self.wanted}.")
        return cast("type[PartT]", found)

    def build(self, name: str, params: Mapping[str, Any]) -> PartT:
        """Build the part that `name` stands for: registered, from an entry point, or ``module:Class``.

        Parameters are the constructor's keyword arguments; their annotations are the validation rules.

        Raises:
            ConfigError: as :meth:`part_class`; a parameter is wrong, or the constructor refuses them.
        """
        found = self.part_class(name)
        failure = f"The {self.kind} '{name}' cannot be built with {dict(params)}"
        with users_code(failure):
            model = _parameter_model(found)
        wanted = validate(model, params, f"{self.kind} '{name}'")
        with users_code(failure):
            return found(**{key: getattr(wanted, key) for key in wanted.model_fields_set})

    def _installed(self) -> dict[str, str]:
        return {point.name: point.value for point in entry_points(group=self.entry_points)}


def _parameter_model(found: Any) -> type[BaseModel]:
    """Return the constructor's keyword arguments as a closed model, so that they are checked like any other key."""
    fields: dict[str, Any] = _parameters(found, bounds=True)
    return create_model(f"{found.__name__}Parameters", __base__=Spec, **fields)


def _parameters(found: Any, *, bounds: bool) -> dict[str, tuple[Any, Any]]:
    """Return the annotation, with its bounds or bare, and the default (``...``: none) of each keyword argument."""
    # A class without a constructor has object's, whose annotations cannot be looked up everywhere.
    hints = get_type_hints(found.__init__, include_extras=bounds) if found.__init__ is not object.__init__ else {}
    return {
        parameter.name: (
            hints.get(parameter.name, Any),
            ... if parameter.default is parameter.empty else parameter.default,
        )
        for parameter in inspect.signature(found).parameters.values()
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    }


def _told(annotation: Any, default: Any) -> JsonObject:
    """Return a parameter's type as text and its default as JSON; of settings only those that it sets."""
    told: JsonObject = {"type": inspect.formatannotation(annotation)}
    if default is not ...:
        value = default.model_dump(exclude_unset=True) if isinstance(default, BaseModel) else default
        told["default"] = to_jsonable_python(value, inf_nan_mode="strings", fallback=repr)
    return told
