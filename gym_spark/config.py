"""What a run is, as validated values: YAML files, ``--set`` overrides and flags come in, a frozen `RunSpec` leaves.

Later layers win: the benchmark's defaults, then each ``--config`` file in order, then flags, then ``--set``.
An unknown key is an error that names the nearest right one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeVar, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from gym_spark.errors import ConfigError, did_you_mean

#: Raise when what the identity covers, or how it is spelled, changes: old runs then ask for a new run id.
IDENTITY_VERSION = 1

JsonObject = dict[str, Any]

#: Keys at or below which somebody may have put a secret by mistake: messages about them do not repeat the value.
_UNSHOWN: Final = frozenset({"endpoint", "urls", "api_key_env", "spark"})
#: An address whose parts cannot be mistaken for one another. Groups: scheme and host, which may be told, and port.
_CLEAR_URL: Final = re.compile(
    r"(https?://)(?:[^/?#@]*@)?((?:[\w.-]+|\[[\da-fA-F:.]+\])(?::(\d{1,5}))?)(?:/[^\s?#@]*)?(?:[?#][^@]*)?"
)


def _storable(value: JsonObject) -> JsonObject:
    """Refuse what has no JSON form: the stored run could not be read back."""
    try:
        canonical_json(value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"it holds something that has no JSON form ({error})") from error
    return value


#: The user's own JSON: body fields, parameters.
FreeObject = Annotated[JsonObject, AfterValidator(_storable)]


class Spec(BaseModel):
    """Base of every configuration model: frozen, closed to unknown keys, numbers finite, booleans no numbers."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False, hide_input_in_errors=True
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_boolean_number(cls, value: Any, info: ValidationInfo) -> Any:
        # Not pydantic's strict mode: YAML reads 1e-3 as a word, which is a number all the same.
        if isinstance(value, bool) and info.field_name is not None:
            kinds = _kinds(cls.model_fields[info.field_name].annotation)
            if kinds & {int, float} and bool not in kinds:
                raise ValueError("must be a number, not on or off (which YAML also reads from yes and no)")
        return value


def _kinds(annotation: Any) -> set[Any]:
    """Return the plain types among which a union or an annotated type chooses."""
    if get_origin(annotation) is Annotated:
        return _kinds(annotation.__origin__)
    inner = get_args(annotation)
    return set().union(*map(_kinds, inner)) if inner else {annotation}


class SamplingSpec(Spec):
    """How the model samples. A field left unset is left out of the request, so the server's default holds."""

    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: tuple[str, ...] | None = None
    #: Base seed; each rollout derives its own from it, so that repeats stay different samples.
    seed: Annotated[int, Field(ge=0)] | None = None
    #: Further body fields, sent as they are (``top_k``, ``chat_template_kwargs``, ...).
    extra: FreeObject = Field(default_factory=dict)


#: Pattern of what names a run or a verification of one.
NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
#: Marks a field that no user sets, with who does: no other field has such an extra.
_SET_BY: Final = "set_by"
#: What a scored rollout counts as that an exception cut short.
ExceptionPolicy = Literal["count", "zero", "exclude"]

#: What can end a try of a model call and yet pass at another try; `endpoint.retry` holds the rules and their reasons.
RetriedKind = Literal[
    "unreachable",
    "dropped",
    "timeout",
    "rate_limited",
    "server_error",
    "invalid_reply",
    "reply_too_large",
    "local_resources",
]


class RetrySpec(Spec):
    """Changes to the retry rule of one kind of failure; what is left unset stays as `endpoint.retry` has it."""

    #: Failures of this kind that end a call: 1 means no retry.
    attempts: Annotated[int, Field(ge=1)] | None = None
    #: Seconds from a call's first failure of this kind within which another try may begin.
    window_s: Annotated[float, Field(ge=0)] | None = None


class Prices(Spec):
    """Money per million tokens, in any one currency."""

    input: Annotated[float, Field(ge=0)]
    output: Annotated[float, Field(ge=0)]
    #: Of input tokens that the server had cached; like other input unless given.
    cached_input: Annotated[float, Field(ge=0)] | None = None


class BudgetSpec(Spec):
    """What a run may spend; no further rollout is started where the next would pass a bound."""

    #: In the currency of `Prices`.
    money: Annotated[float, Field(gt=0)] | None = None
    #: Input and output tokens together.
    tokens: Annotated[int, Field(gt=0)] | None = None


def plain_url(url: str) -> str:
    """Return an address without a slash at its end, or refuse it: one that may hold a secret, by its host alone."""
    clear = _CLEAR_URL.fullmatch(url)
    if any(sign in url for sign in "@?#"):
        raise ValueError(
            f"{f'the address of {clear[1]}{clear[2]}' if clear else 'an address (it is not shown)'} holds a user, a "
            "password, a query or a fragment, and must have the form http(s)://host:port/v1; a key is given with "
            "--model-api-key-env"
        )
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"'{url}' is not an http:// or https:// address")
    if clear is None or int(clear[3] or 0) > 65535:
        raise ValueError(f"'{url}' is not a URL of the form http(s)://host:port/v1")
    return url.rstrip("/")


def _variable_name(name: str) -> str:
    # Some providers' keys have the form of a name (hf_...), but no name is such a mixture.
    like_a_key = len(name) >= 20 and any(map(str.isdigit, name)) and any(map(str.islower, name))
    if like_a_key or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(
            "must be the name of the environment variable that holds the key, and what was given (it is not shown) "
            "is none; if it is the key itself, put that into a variable and name the variable"
        )
    return name


class EndpointSpec(Spec):
    """An OpenAI-compatible HTTP server. Only `model` and `api` are part of a run's identity."""

    #: ``http(s)://host:port/v1``, one per replica. Empty: the embedded local model is started.
    urls: tuple[Annotated[str, AfterValidator(plain_url)], ...] = ()
    model: str | None = None
    api: Literal["chat", "responses"] = "chat"
    #: Name of the environment variable that holds the key; the key itself is never stored.
    api_key_env: Annotated[str, AfterValidator(_variable_name)] | None = None
    #: Rollouts in flight, run-wide, over all Spark tasks.
    concurrency: Annotated[int, Field(ge=1)] = 32
    #: Clock of one request, from the moment it goes out.
    timeout_s: Annotated[float, Field(gt=0)] = 600.0
    #: Changes to the retry rules, by kind of failure.
    retries: dict[RetriedKind, RetrySpec] = Field(default_factory=dict)
    #: Requests and tokens per minute that the server grants, run-wide; not held back unless given.
    requests_per_minute: Annotated[float, Field(gt=0)] | None = None
    tokens_per_minute: Annotated[float, Field(gt=0)] | None = None
    prices: Prices | None = None
    budget: BudgetSpec | None = None


class PartSpec(Spec):
    """A harness or verifier by its registered name or ``module:Class``, with its parameters; a bare name is enough."""

    name: str
    params: FreeObject = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _bare_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class RunSpec(Spec):
    """One evaluation, complete. Stored with the run; `identity` digests what can change a score."""

    benchmark: str
    run_id: Annotated[str, Field(pattern=NAME)]
    #: Content fingerprint of the tasks; resolved from the lake.
    dataset_version: str | None = None
    endpoint: EndpointSpec = Field(default_factory=EndpointSpec)
    sampling: SamplingSpec = Field(default_factory=SamplingSpec)
    harness: PartSpec = Field(default_factory=lambda: PartSpec(name="single_turn"))
    verifier: PartSpec
    #: Where a verifier may run code that the model wrote: nowhere, the best sandbox that holds on the machine, the one
    #: named, or one's own as ``module:Class``. No part of the identity: it contains a program, and grades nothing.
    sandbox: Annotated[str, Field(pattern=r"^(off|auto|bubblewrap|landlock|[\w.]+:\w+)$")] = "off"
    #: Endpoint of the model that a verifier asks. Its model is part of the identity, since it decides verdicts.
    judge: EndpointSpec | None = None
    #: What a rollout counts as that an exception cut short (an agent's timeout, say) and that a verifier scored all the
    #: same: its score, zero, or nothing. What is stored stays as it is; how many there are is told under each.
    graded_with_exception: ExceptionPolicy = "count"
    #: Clock of one rollout, all its calls and the harness's own work; a harness that hangs must not hold up the run.
    rollout_timeout_s: Annotated[float, Field(gt=0)] = 6 * 3600.0
    #: Rollouts per task; their index is an int32 column.
    num_repeats: Annotated[int, Field(ge=1, lt=2**31)] = 1
    #: Tasks to use: a count (1), or a share of the benchmark up to all of it (1.0).
    limit: int | float | None = None
    #: Seed of the pick that `limit` makes; Spark hashes it as an int64.
    limit_seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] = 0
    #: Spark settings for a session that gym-spark builds itself; an existing session is used as it is.
    spark: dict[str, str] = Field(default_factory=dict)
    #: Of a run that was imported: its files, and what their rows say of runs and labels. Its plan is in `inputs`.
    imported: FreeObject | None = Field(default=None, json_schema_extra={_SET_BY: "eval import"})

    @field_validator("spark", mode="before")
    @classmethod
    def _flat_settings(cls, settings: Any) -> Any:
        return _flattened(settings) if isinstance(settings, Mapping) else settings

    @field_validator("sandbox", mode="before")
    @classmethod
    def _off_in_yaml(cls, sandbox: Any) -> Any:
        return "off" if sandbox is False else sandbox  # how YAML reads a bare off

    @field_validator("limit")
    @classmethod
    def _count_or_share(cls, limit: int | float | None) -> int | float | None:
        if limit is not None and not (limit >= 1 if isinstance(limit, int) else 0 < limit <= 1):
            raise ValueError("must be a count of tasks from 1, or a share above 0 and up to 1.0 (100%)")
        return limit

    def identity_parts(self) -> JsonObject:
        """Return what can change a score, and nothing else (DESIGN.md §2)."""
        judge = {} if self.judge is None else {"judge": {"model": self.judge.model, "api": self.judge.api}}
        return judge | {
            "identity_version": IDENTITY_VERSION,
            "benchmark": self.benchmark,
            "dataset_version": self.dataset_version,
            "model": self.endpoint.model,
            "api": self.endpoint.api,
            "sampling": self.sampling.model_dump(mode="json", exclude_none=True),
            "harness": self.harness.model_dump(mode="json"),
            "verifier": self.verifier.model_dump(mode="json"),
            "graded_with_exception": self.graded_with_exception,
            "limit_seed": self.limit_seed,
        }

    def identity(self) -> str:
        """Return the digest of :meth:`identity_parts`."""
        return digest(self.identity_parts())


def _flattened(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Spell nested Spark settings with dots, and their values as Spark's own files do."""
    flat: dict[str, str] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flattened(value, f"{prefix}{key}.")
        elif isinstance(value, bool):
            flat[f"{prefix}{key}"] = str(value).lower()
        elif isinstance(value, str | int | float):
            flat[f"{prefix}{key}"] = str(value)
        else:
            raise ValueError(f"'{prefix}{key}' must be one word or number")
    return flat


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
        elsewhere = _paths_of(model, path[-1])
        hint = f"; did you mean '{elsewhere[0]}'?" if elsewhere else did_you_mean(path[-1], _keys_at(model, path[:-1]))
        return f"unknown key '{'.'.join(path)}'" + hint.rstrip(".")
    if item["type"] == "missing":
        return f"required key '{'.'.join(path)}' is missing"
    message = str(item["msg"]).removeprefix("Value error, ").replace("a valid tuple", "a list")
    if item["type"] == "model_type":
        message = f"must have keys of its own: {', '.join(f'{path[-1]}.{key}' for key in _keys_at(model, path))}"
    if item["type"] == "string_type" and isinstance(item["input"], dict):
        message += "; text that YAML would read as keys (word: ...) goes in quotes"
    seen = "" if path[-1] in _UNSHOWN else f" is {json.dumps(item['input'], default=str)}"
    return f"'{'.'.join(path)}'{seen}: {message[0].lower()}{message[1:]}"


def _paths_of(model: type[BaseModel], key: str, prefix: tuple[str, ...] = ()) -> list[str]:
    """Return where below `model` a key of this name stands, with dots."""
    found: list[str] = []
    for name in _keys_at(model, prefix):
        path = (*prefix, name)
        found += [".".join(path)] * (name == key) + _paths_of(model, key, path)
    return found


def _keys_at(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    """Return the keys that stand at `path` below `model` and that a user may set."""
    for part in path:
        field = model.model_fields.get(part)
        kinds = [] if field is None else [field.annotation, *get_args(field.annotation)]  # also inside `X | None`
        inner = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if not inner:
            return []
        model = inner[0]
    return [name for name, field in model.model_fields.items() if field.json_schema_extra is None]
