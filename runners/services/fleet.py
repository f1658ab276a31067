"""Runners as drivers, and the verbs over them: who calls, pause, drain, resume, revoke.

Pause, drain and revoke lock the runner's row alone: they wait for an admission under way and hold off later ones, so
once one of them has answered, nothing more is offered to that runner (rule Q11).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models.functions import Now

from admission.drivers import Driver
from admission.services.runs import Cause, Hold, read_holds, take_away
from admission.sql.ending import TAKE_AWAY_CAUSES
from admission.states import DriverKind
from controlplane.core.audit import SYSTEM, Actor, record
from controlplane.core.clock import check_to_come
from controlplane.core.conf import conf
from controlplane.core.errors import Conflict, NotFound
from controlplane.core.fencing import is_strict, runner_fence_seconds
from controlplane.core.loops import Progress
from controlplane.core.sql import Row, execute, one, rows
from controlplane.core.tokens import token_hash
from controlplane.core.wakeups import announce
from runners import sql
from runners.models import Runner

CONTACT_RESOLUTION_SECONDS = 5.0
_RESOLUTION = {"resolution": CONTACT_RESOLUTION_SECONDS}
BATCH = 500
OVER = "the pause was set to end now"

REVOKED = Cause("runner_revoked", TAKE_AWAY_CAUSES["own"])


@dataclass(frozen=True, slots=True)
class RunnerIdentity:
    """The calling runner, as its row stood at the call."""

    id: int
    name: str
    tenant_id: int | None
    labels: Mapping[str, str]
    executors: tuple[str, ...]
    slots: int
    shown: str
    paused: bool
    draining: bool
    one_job: bool = False
    """Takes one run, then drains."""
    spent: bool = False
    """It has taken that one."""
    cancels: tuple[Hold, ...] = ()
    """Its runs that are to be cancelled."""

    @property
    def mode(self) -> str:
        """What the server wants of it."""
        return "draining" if self.draining else "paused" if self.paused else "active"


def find_runner(token: str) -> RunnerIdentity | None:
    """Whose token this is; None for an unknown or revoked one. Notes the contact now and then."""
    hashed = token_hash(token)
    return find_runners([hashed]).get(hashed)


def find_runners(hashes: Sequence[bytes]) -> dict[bytes, RunnerIdentity]:
    """Whose tokens these are, by their hashes; dead ones are missing. Notes the contacts."""
    found = rows(sql.FIND_RUNNERS, {"hashes": list(hashes)} | _RESOLUTION)
    for row in found:
        if row["first"]:
            execute(sql.END_OVERLAP, {"runner": row["id"], "hash": row["hash"]})
    if quiet := [row["id"] for row in found if row["quiet"]]:
        execute(sql.NOTE_CONTACTS, {"runners": quiet} | _RESOLUTION)
    return {bytes(row["hash"]): _identity(row) for row in found}


def _identity(row: Row) -> RunnerIdentity:
    return RunnerIdentity(
        id=row["id"],
        name=row["name"],
        tenant_id=row["tenant_id"],
        # The server's labels come last: what they say cannot be overridden.
        labels={**_json(row["labels"]), **_json(row["trust_labels"])},
        executors=tuple(_json(row["executors"])),
        slots=row["slots"],
        shown=row["shown"],
        paused=row["paused"],
        draining=row["draining"],
        one_job=row["one_job"],
        spent=row["spent"],
        cancels=tuple((run, epoch) for run, epoch in row["cancels"]),
    )


def get_runner(runner: int) -> Runner:
    """Raises NotFound."""
    found = Runner.objects.select_related("tenant").filter(pk=runner).first()
    if found is None:
        raise NotFound(f"There is no runner {runner}.")
    return found


def runner_driver(runner: RunnerIdentity) -> Driver:
    """The runner as admission sees it. It is given work by a claim only, which locks its row (`services.claims`)."""
    return Driver(
        kind=DriverKind.RUNNER,
        id=runner.id,
        name=runner.name,
        lock=lambda: False,
        labels=runner.labels,
        backends=runner.executors,
        tenant_id=runner.tenant_id,
        lease_seconds=conf().runner_lease_seconds,
    )


def refuse_unfenced(kept_seconds: float | None) -> None:
    """Strict fencing holds for those who keep it: no work for an agent that does not, or not as early as it must."""
    asked = runner_fence_seconds()
    if asked is not None and (kept_seconds is None or kept_seconds > asked):
        kept = "no fence" if kept_seconds is None else f"a fence of {kept_seconds:g} s"
        raise Conflict(
            f"Strict fencing is on with {asked:g} s, and this runner keeps {kept}.",
            hint="Start the agent again; it takes up the fence when it starts.",
            code="fence_required",
        )


def pause_runner(
    runner: int, *, actor: Actor, reason: str, resume_at: datetime | None = None, own: bool = False
) -> bool:
    """No new work until resumed, by somebody or by itself at a time; what runs goes on. False: it was paused already.

    `own`: the machine asks itself, and may take it back itself. An operator's stands until an operator resumes, also
    where the machine had paused itself before.

    Raises InvalidInput for a time that has passed, or is too late to be kept.
    """
    if resume_at is not None:
        check_to_come(resume_at, "The pause")
    values = {"paused_at": Now(), "pause_note": reason, "resume_at": resume_at, "pause_own": own}
    after = {"resume_at": resume_at.isoformat() if resume_at else None}
    return _set(runner, "pause", ("paused_at", "pause_own"), values, actor=actor, reason=reason, after=after)


def drain_runner(runner: int, *, actor: Actor, reason: str, own: bool = False) -> bool:
    """No new work; the agent finishes what it has and ends. False: it was draining already.

    `own`: the machine asks itself, and may take it back itself. An operator's drain stands until an operator resumes.
    """
    values = {"draining_at": Now(), "drain_own": own}
    return _set(runner, "drain", ("draining_at", "drain_own"), values, actor=actor, reason=reason)


def resume_own(runner: int, *, actor: Actor, reason: str = "its own drain is over", paused: bool = False) -> bool:
    """The machine takes back its own drain, and with `paused` its own pause. False: none is its own.

    What an operator asked for stays.
    """
    with transaction.atomic():
        _lock(runner)
        ended = Runner.objects.filter(pk=runner, drain_own=True).update(draining_at=None, drain_own=False)
        if paused:
            mine = Runner.objects.filter(pk=runner, pause_own=True)
            ended += mine.update(paused_at=None, pause_own=False, pause_note="", resume_at=None)
        if ended:
            record("resume", "runner", runner, actor=actor, reason=reason)
            announce()
    return bool(ended)


def resume_runner(runner: int, *, actor: Actor, reason: str = "", if_due: bool = False) -> bool:
    """Takes work again, after a pause or a drain. False: it did already, or (`if_due`) its pause has no end that has
    passed."""
    with transaction.atomic():
        row = _lock(runner)
        if row["revoked_at"] is not None:
            raise Conflict(f"Runner {runner} is revoked.", hint="Enrol the machine anew.", code="runner_revoked")
        if (row["paused_at"] is None and row["draining_at"] is None) or (if_due and not row["due"]):
            return False
        # A pause that ends by itself ends nothing else: a drain stays.
        values: dict[str, Any] = {"paused_at": None, "pause_own": False, "pause_note": "", "resume_at": None}
        Runner.objects.filter(pk=runner).update(
            **values, **({} if if_due else {"draining_at": None, "drain_own": False})
        )
        record("resume", "runner", runner, actor=actor, reason=reason)
        announce()
    return True


def end_pauses() -> Progress:
    """Runners whose pause has an end that passed take work again. Each is judged again under its row's lock."""
    due = [row["id"] for row in rows(sql.READ_PAUSES_OVER, {"limit": BATCH})]
    resumed = [runner for runner in due if _resume_due(runner)]
    return Progress({"runner_pause_over": len(resumed)}, more=len(due) == BATCH and bool(resumed))


def _resume_due(runner: int) -> bool:
    try:
        return resume_runner(runner, actor=SYSTEM, reason=OVER, if_due=True)
    except Conflict:
        # Revoked while paused: it never resumes, and must not be looked at again.
        Runner.objects.filter(pk=runner).update(resume_at=None)
        return False


def revoke_runner(runner: int, *, actor: Actor, reason: str) -> int | None:
    """Its token is dead from the next call on, and its runs are taken from it. None: it was revoked already.

    Returns how many runs were taken. Their containers are the machine's to stop: it learns at its next call. Under
    strict fencing none is taken: they come free when their leases have lapsed, for until then they may be executed.
    """
    with transaction.atomic():
        row = _lock(runner)
        if row["revoked_at"] is not None:
            return None
        Runner.objects.filter(pk=runner).update(revoked_at=Now(), old_hash=None, old_until=None)
        taken = take_all(runner, row["name"], f"{actor.name}: {reason}")
        record("revoke", "runner", runner, actor=actor, reason=reason, after={"runs_taken": taken})
        announce()
    return taken


def take_all(runner: int, name: str, detail: str) -> int:
    """Take this runner's runs from it, in the transaction that ends its credential; returns how many."""
    driver = Driver(DriverKind.RUNNER, runner, name, lambda: False)
    holds = [] if is_strict() else [(held["id"], held["epoch"]) for held in read_holds(driver)]
    return len(take_away(holds, REVOKED, detail=detail, driver=driver))


def _set(
    runner: int,
    verb: str,
    columns: tuple[str, str],
    values: dict[str, Any],
    *,
    actor: Actor,
    reason: str,
    after: dict[str, Any] | None = None,
) -> bool:
    with transaction.atomic():
        row = _lock(runner)
        if row["revoked_at"] is not None:
            raise Conflict(f"Runner {runner} is revoked.", code="runner_revoked")
        since, own = columns
        if row[since] is not None and (values[own] or not row[own]):
            return False
        Runner.objects.filter(pk=runner).update(**values)
        record(verb, "runner", runner, actor=actor, reason=reason, after=after)
        announce()
    return True


def _lock(runner: int) -> Row:
    row = one(sql.LOCK_RUNNER_ALONE, {"runner": runner})
    if row is None:
        raise NotFound(f"There is no runner {runner}.")
    return row


def _json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value
