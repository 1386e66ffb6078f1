"""What a run is, as validated values: YAML files, ``--set`` overrides and flags come in, a frozen `RunSpec` leaves.

Later layers win: the benchmark's defaults, then each ``--config`` file in order, then flags, then ``--set``.
An unknown key is an error that names the nearest right one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from gym_spark.errors import ConfigError, did_you_mean

#: Raise when what the identity covers, or how it is spelled, changes: old runs then ask for a new run id.
IDENTITY_VERSION = 1

JsonObject = dict[str, Any]


class Spec(BaseModel):
    """Base of every configuration model: frozen, and closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class SamplingSpec(Spec):
    """How the model samples. A field left unset is left out of the request, so the server's default holds."""

    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: tuple[str, ...] | None = None
    #: Base seed; each rollout derives its own from it, so that repeats stay different samples.
    seed: Annotated[int, Field(ge=0)] | None = None
    #: Further body fields, sent as they are (``top_k``, ``chat_template_kwargs``, ...).
    extra: JsonObject = Field(default_factory=dict)


class EndpointSpec(Spec):
    """An OpenAI-compatible HTTP server. Only `model`, `api` and `mode` are part of a run's identity."""

    #: ``http(s)://host:port/v1``, one per replica. Empty: the embedded local model is started.
    urls: tuple[str, ...] = ()
    model: str | None = None
    api: Literal["chat", "responses"] = "chat"
    #: Name of the environment variable that holds the key; the key itself is never stored.
    api_key_env: str | None = None
    #: Rollouts in flight, run-wide, over all Spark tasks.
    concurrency: Annotated[int, Field(ge=1)] = 32
    #: Clock of one request, from the moment it goes out.
    timeout_s: Annotated[float, Field(gt=0)] = 600.0
    #: Tries of one model call that fails for a reason that may pass.
    max_attempts: Annotated[int, Field(ge=1)] = 3
    #: Bound on the time spent on retries of one call, counted from its first failure.
    retry_window_s: Annotated[float, Field(ge=0)] = 60.0

    @field_validator("urls")
    @classmethod
    def _plain_urls(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"'{url}' is not an http:// or https:// address")
        return tuple(url.rstrip("/") for url in urls)


class PartSpec(Spec):
    """A harness or verifier by its registered name or ``module:Class``, with its parameters."""

    name: str
    params: JsonObject = Field(default_factory=dict)


class RunSpec(Spec):
    """One evaluation, complete. Stored with the run; `identity` digests what can change a score."""

    benchmark: str
    run_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
    #: Content fingerprint of the tasks; resolved from the lake.
    dataset_version: str | None = None
    endpoint: EndpointSpec = Field(default_factory=EndpointSpec)
    sampling: SamplingSpec = Field(default_factory=SamplingSpec)
    harness: PartSpec = Field(default_factory=lambda: PartSpec(name="single_turn"))
    verifier: PartSpec
    num_repeats: Annotated[int, Field(ge=1)] = 1
    #: Tasks to use: a count, or a fraction of the benchmark below 1.
    limit: int | float | None = None
    #: Seed of the pick that `limit` makes.
    limit_seed: int = 0
    #: Spark settings for a session that gym-spark builds itself; an existing session is used as it is.
    spark: dict[str, str] = Field(default_factory=dict)

    @field_validator("limit")
    @classmethod
    def _count_or_share(cls, limit: int | float | None) -> int | float | None:
        if limit is not None and not (limit >= 1 if isinstance(limit, int) else 0 < limit < 1):
            raise ValueError("must be a count of tasks from 1, or a share between 0 and 1")
        return limit

    def identity_parts(self) -> JsonObject:
        """Return what can change a score, and nothing else (DESIGN.md §2)."""
        return {
            "identity_version": IDENTITY_VERSION,
            "benchmark": self.benchmark,
            "dataset_version": self.dataset_version,
            "model": self.endpoint.model,
            "api": self.endpoint.api,
            "sampling": self.sampling.model_dump(mode="json", exclude_none=True),
            "harness": self.harness.model_dump(mode="json"),
            "verifier": self.verifier.model_dump(mode="json"),
            "limit_seed": self.limit_seed,
        }

    def identity(self) -> str:
        """Return the digest of :meth:`identity_parts`."""
        return digest(self.identity_parts())


def canonical_json(value: Any) -> str:
    """Return the one spelling of a JSON value that digests are taken over: sorted keys, no blanks, UTF-8, strict."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: Any, length: int = 16) -> str:
    """Return the first `length` hex digits of the SHA-256 of `value`'s canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:length]


def differences(old: JsonObject, new: JsonObject, prefix: str = "") -> list[str]:
    """List ``key: old -> new`` for every leaf in which two nested objects differ, in key order."""
    found: list[str] = []
    for key in sorted(old.keys() | new.keys()):
        left, right, name = old.get(key), new.get(key), f"{prefix}{key}"
        if isinstance(left, dict) and isinstance(right, dict):
            found += differences(left, right, f"{name}.")
        elif left != right:
            found.append(f"{name}: {json.dumps(left)} -> {json.dumps(right)}")
    return found


ModelT = TypeVar("ModelT", bound=BaseModel)


def validate(model: type[ModelT], data: Mapping[str, Any], where: str | Callable[[Sequence[str]], str]) -> ModelT:
    """Build `model` from `data`, or raise one `ConfigError` that names every wrong key and where it stands.

    Args:
        model: The pydantic model.
        data: Merged configuration.
        where: What the user would call the place ("conf/run.yaml", "--set"), or a function from a key's path to that.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        told: dict[str, list[str]] = {}
        for item in error.errors():
            path = [part for part in item["loc"] if isinstance(part, str)] or ["(top level)"]
            place = where if isinstance(where, str) else where(path)
            told.setdefault(place, []).append(_explain(model, item, path))
        raise ConfigError("; ".join(f"{place}: {'; '.join(texts)}" for place, texts in told.items())) from error


def _explain(model: type[BaseModel], item: Any, path: list[str]) -> str:
    if item["type"] == "extra_forbidden":
        return f"unknown key '{'.'.join(path)}'" + did_you_mean(path[-1], _keys_at(model, path[:-1])).rstrip(".")
    if item["type"] == "missing":
        return f"required key '{'.'.join(path)}' is missing"
    message = str(item["msg"]).removeprefix("Value error, ").replace("a valid tuple", "a list")
    return f"'{'.'.join(path)}' is {json.dumps(item['input'], default=str)}: {message[0].lower()}{message[1:]}"


def _keys_at(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    """Return the keys that stand at `path` below `model`."""
    for part in path:
        field = model.model_fields.get(part)
        kinds = [] if field is None else [field.annotation, *get_args(field.annotation)]  # also inside `X | None`
        inner = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if not inner:
            return []
        model = inner[0]
    return list(model.model_fields)


def read_yaml(path: Path) -> JsonObject:
    """Read a YAML mapping, or raise a `ConfigError` that names the file and line."""
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"There is no file '{path}'; check the path.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"'{path}' cannot be read as text ({error}).") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "not valid YAML"
        raise ConfigError(f"'{path}'{line} is not valid YAML: {problem}.") from error
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise ConfigError(f"'{path}' must hold a mapping of keys to values, not a {type(loaded).__name__}.")
    return loaded


def parse_overrides(assignments: Sequence[str]) -> JsonObject:
    """Turn ``a.b=value`` assignments into a nested object; values are read as YAML (``1``, ``true``, ``[a, b]``)."""
    merged: JsonObject = {}
    for assignment in assignments:
        key, sign, text = assignment.partition("=")
        if not sign or not key:
            raise ConfigError(f"--set takes KEY=VALUE, not '{assignment}'.")
        try:
            value: Any = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"--set {key}: '{text}' is not a YAML value.") from error
        for part in reversed(key.split(".")):
            value = {part: value}
        merged = merge(merged, value)
    return merged


def merge(*layers: Mapping[str, Any]) -> JsonObject:
    """Merge nested mappings, later layers winning; anything but a mapping is replaced whole."""
    merged: JsonObject = {}
    for layer in layers:
        for key, value in layer.items():
            known = merged.get(key)
            merged[key] = merge(known, value) if isinstance(known, dict) and isinstance(value, Mapping) else value
    return merged
