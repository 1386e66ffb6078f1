"""`eval reverify`: stored rollouts are judged once more. No model is asked for an answer, and older verdicts stay."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from pyspark.sql import functions as F

from gym_spark.config import NAME, EndpointSpec, JsonObject, PartSpec
from gym_spark.connection import Say, connected_judge, named_judge
from gym_spark.errors import ConfigError, did_you_mean
from gym_spark.interchange.gym.stored import IMPORTED
from gym_spark.judging import judge_and_store
from gym_spark.ledger import verification_id_of
from gym_spark.planning import asked
from gym_spark.reporting import run_outcomes
from gym_spark.results.flips import Change, change_between
from gym_spark.results.outcomes import kept
from gym_spark.rollout.share import WHOLE, Share
from gym_spark.selection import Selection, counted, to_judge
from gym_spark.tables.lake import Lake
from gym_spark.tables.reverifications import noted_of, owner_of
from gym_spark.tables.runs import RunRecord, versions
from gym_spark.tables.schemas import REVERIFICATIONS, VERIFICATIONS
from gym_spark.verify.base import Verifier, check_sandbox, load_verifier, verifier_digest
from gym_spark.verify.sandbox.choice import sandbox_description
from gym_spark.verify.stage import is_retried


@dataclass(frozen=True, slots=True)
class Reverification:
    """What a reverification did.

    Attributes:
        verification_id: Its name.
        compared_with: The verification that it is compared with, the run's own; if that is the one that was completed,
            as it was before.
        unsafe: The verdicts were forced and may mean nothing.
        judged: Verdicts that were added, failed rollouts' included.
    """

    run_id: str
    verification_id: str
    compared_with: str
    verifier: PartSpec
    unsafe: bool
    judged: int
    change: Change

    def to_json(self) -> str:
        """Return it as strict JSON."""
        shown = asdict(self) | {"verifier": self.verifier.model_dump(mode="json")}
        return json.dumps(shown, indent=2, allow_nan=False)


def reverify(
    lake: Lake,
    record: RunRecord,
    verifier: PartSpec,
    *,
    verification_id: str | None = None,
    selection: Selection | None = None,
    resume: bool = False,
    force: bool = False,
    share: Share = WHOLE,
    sandbox: str = "off",
    judge: EndpointSpec | None = None,
    preflight: bool = True,
    say: Say = print,
) -> Reverification:
    """Judge a run's stored rollouts with a verifier; the verdicts are a verification of their own.

    Args:
        lake: The lake.
        record: The run.
        verifier: Which verifier, with which parameters.
        verification_id: Name of the verification; made from verifier and parameters unless given. What an imported run
            has to retry is by default added to what was imported, unless the verifier has a verification there.
        selection: Which rollouts; None: all.
        resume: Where the verification exists, judge what it has no verdict on (and what `selection.retry` names).
        force: Also where the verifier needs more than what is stored; the verdicts are then marked `unsafe`.
        share: The part of the tasks to judge, of several parallel jobs.
        sandbox: Where model-written code may run (`RunSpec.sandbox`).
        judge: Endpoint of the model that the verifier asks (`RunSpec.judge`).
        preflight: Send the judge one tiny request first.
        say: Told how far it is.

    Raises:
        ConfigError: the verifier is wrong, or cannot judge stored rollouts; the verification exists, or is another
            verifier's; a selection is wrong, or there is nothing to retry. Nothing was written.
    """
    selection = selection or Selection()
    _check_name(verification_id)
    loaded = load_verifier(verifier.name, verifier.params)
    check_sandbox(verifier.name, loaded, sandbox)
    judge = named_judge(verifier.name, loaded, judge)
    unsafe = _is_unsafe(verifier.name, loaded, force=force)
    run_id, only_again = record.spec.run_id, bool(selection.retry) and not resume
    name = verification_id or verification_id_of(verifier, judge)
    digest = verifier_digest(verifier.name, verifier.params, judge)
    is_there = _is_there(lake, run_id, name, digest, completes=only_again)
    if not is_there and only_again:
        if verification_id is None and record.spec.imported is not None:
            name = record.verification_id
            is_there = _is_there(lake, run_id, name, digest, completes=True)
        _check_retry(lake, record, name, selection)
    # Jobs that share a verification out join it, whichever begins first.
    if is_there and not (resume or only_again or share != WHOLE):
        raise ConfigError(
            f"The run '{run_id}' has the verification '{name}'; add --resume to judge what it has no verdict on, or "
            "take another --verification-id to judge everything anew."
        )
    if resume and not is_there:
        say(f"The run has no verification '{name}' yet: it begins now.")
    _check_inputs(lake, record, verifier.name, loaded)
    todo = to_judge(lake, record, selection, share, name if is_there else None, resume=resume)
    count = counted(todo, selection)
    # Pinned: what is completed may be the run's own verification.
    here = {"run_id": run_id, "verification_id": record.verification_id}
    was = lake.read_as_of_now(VERIFICATIONS, **here) if name == record.verification_id else None
    if count:
        # Before anything is written: a judge that is down, or refuses the key, ends the command.
        with connected_judge(judge, verifier, preflight=preflight, say=say) as asks:
            lake.ensure(VERIFICATIONS, REVERIFICATIONS)
            used = sandbox if loaded.wants_sandbox else None
            _note(lake, record, name, verifier, selection, unsafe=unsafe, judge=judge, sandbox=used)
            if owner_of(lake, run_id, name) != digest:
                raise ConfigError(_taken(run_id, name))
            commits = judge_and_store(
                lake,
                todo,
                run_id=run_id,
                verification_id=name,
                verifier=verifier,
                sandbox=sandbox,
                judge=asks,
                share=share,
                unsafe=unsafe,
                count=count,
                say=say,
            )
        if commits > 1:
            lake.compact(VERIFICATIONS, run_id=run_id, verification_id=name)
    with (
        kept(run_outcomes(lake, record, was)) as before,
        kept(run_outcomes(lake, replace(record, verification_id=name))) as after,
    ):
        change = change_between(before, after)
    return Reverification(run_id, name, record.verification_id, verifier, unsafe, count, change)


def verification_of(lake: Lake, record: RunRecord, verification_id: str | None) -> tuple[RunRecord, bool]:
    """Return the run with another verification as the one that counts, and whether its verdicts are unsafe.

    Raises:
        ConfigError: the run has no such verification.
    """
    name = verification_id or record.verification_id
    noted = noted_of(lake, record.spec.run_id)
    if name not in (record.verification_id, *noted):
        hint = did_you_mean(name, [record.verification_id, *noted])
        raise ConfigError(f"The run '{record.spec.run_id}' has no verification '{name}'{hint}")
    return replace(record, verification_id=name), name in noted and noted[name].unsafe


def own_verifier(record: RunRecord) -> PartSpec:
    """Return the verifier that the run was made with.

    Raises:
        ConfigError: it was imported, and does not tell.
    """
    if record.spec.imported is not None:
        raise ConfigError(
            f"The run '{record.spec.run_id}' was imported, and what gave its rewards is not known here; name a "
            "verifier with --verifier."
        )
    return record.spec.verifier


def _check_name(verification_id: str | None) -> None:
    if verification_id is not None and not re.fullmatch(NAME, verification_id):
        raise ConfigError(
            f"--verification-id takes up to 128 letters, digits, '.', '_' and '-', not '{verification_id[:200]}'."
        )


def _taken(run_id: str, name: str) -> str:
    return (
        f"The verification '{name}' of the run '{run_id}' was made by another verifier, other parameters, or other "
        "versions of its libraries; take another --verification-id."
    )


def _check_inputs(lake: Lake, record: RunRecord, name: str, loaded: Verifier) -> None:
    """Refuse a verifier that needs what no task of the run has: every verdict would be an error.

    Raises:
        ConfigError: no task has it.
    """
    for field in loaded.needs:
        there = F.get_json_object("verifier_inputs", f"$['{field}']").isNotNull()
        if asked(lake, record).where(there).first() is None:
            how = "import the run once more, with --inputs" if record.spec.imported is not None else "choose another"
            raise ConfigError(
                f"The verifier '{name}' needs '{field}', which no task of the run '{record.spec.run_id}' has; {how}."
            )


def _is_unsafe(name: str, loaded: Verifier, *, force: bool) -> bool:
    """Tell whether the verdicts must be marked, or refuse to make such."""
    if loaded.mode in ("stateless", "judge"):
        return False
    if not force:
        needs = "the live session of each rollout" if loaded.mode == "live_session" else "it does not say what"
        raise ConfigError(
            f"The verifier '{name}' needs more than what is stored ({needs}), so its verdicts would mean nothing; "
            "nothing was judged. --force judges all the same, and marks each verdict as unsafe."
        )
    return True


def _is_there(lake: Lake, run_id: str, name: str, digest: str, *, completes: bool) -> bool:
    """Tell whether the run has verdicts of that name; refuse those of another verifier.

    Those that were imported have a verifier that nobody can ask: another one may complete them.
    """
    stored = lake.read(VERIFICATIONS, run_id=run_id, verification_id=name).select("verifier_digest").distinct()
    digests = {row["verifier_digest"] for row in stored.collect()}
    owner = owner_of(lake, run_id, name)
    if (digests | ({owner} if owner else set())) - {digest} - ({IMPORTED} if completes else set()):
        raise ConfigError(_taken(run_id, name))
    return bool(digests)


def _check_retry(lake: Lake, record: RunRecord, name: str, selection: Selection) -> None:
    """Refuse to begin with what the run's own verification has to retry, where it never had such a verdict."""
    run_id, own = record.spec.run_id, record.verification_id
    known = lake.read(VERIFICATIONS, run_id=run_id, verification_id=own)
    if known.where(is_retried(selection.retry)).isEmpty():
        missing = "" if name == own else f"has no verification '{name}' to go on with, and "
        verdicts = " or ".join(selection.retry)
        raise ConfigError(
            f"The run '{run_id}' {missing}never had a verdict {verdicts} in its own, '{own}'; leave the flag out to "
            "judge everything."
        )


def _note(
    lake: Lake,
    record: RunRecord,
    name: str,
    verifier: PartSpec,
    selection: Selection,
    *,
    unsafe: bool,
    judge: EndpointSpec | None,
    sandbox: str | None,
) -> None:
    sandboxed = {} if sandbox is None else {"sandbox": sandbox_description(sandbox)}
    chosen: Mapping[str, object] = {key: value for key, value in asdict(selection).items() if value}
    row: JsonObject = {
        "run_id": record.spec.run_id,
        "verification_id": name,
        "recorded_at": datetime.now(UTC),
        "verifier": verifier.model_dump_json(),
        "verifier_digest": verifier_digest(verifier.name, verifier.params, judge),
        "judge": None if judge is None else judge.model_dump_json(include={"urls", "model", "api"}),
        "selection": json.dumps(chosen) if chosen else None,
        "unsafe": unsafe,
        "versions": json.dumps(versions({"spark": lake.spark.version, **sandboxed})),
    }
    lake.append_rows(REVERIFICATIONS, [row])
