"""Runners as drivers, and the verbs over them: who calls, pause, drain, resume, revoke.

Pause, drain and revoke lock the runner's row alone: they wait for an admission under way and hold off later ones, so
once one of them has answered, nothing more is offered to that runner (rule Q11).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.db.models.functions import Now

from admission.drivers import Driver
from admission.services.runs import Cause, Hold, read_holds, take_away
from admission.sql.ending import TAKE_AWAY_CAUSES
from admission.states import DriverKind
from controlplane.core.audit import Actor, record
from controlplane.core.conf import conf
from controlplane.core.errors import Conflict, NotFound
from controlplane.core.fencing import is_strict, runner_fence_seconds
from controlplane.core.sql import Row, execute, one, rows
from controlplane.core.tokens import token_hash
from controlplane.core.wakeups import announce
from runners import sql
from runners.models import Runner

CONTACT_RESOLUTION_SECONDS = 5.0
_RESOLUTION = {"resolution": CONTACT_RESOLUTION_SECONDS}

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
    """Whose tokens these are, by their hashes; unknown and revoked ones are missing. Notes the contacts."""
    found = rows(sql.FIND_RUNNERS, {"hashes": list(hashes)} | _RESOLUTION)
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
        cancels=tuple((run, epoch) for run, epoch in row["cancels"]),
    )


def runner_driver(runner: RunnerIdentity) -> Driver:
    """The runner as admission sees it."""

    def lock() -> bool:
        return one(sql.LOCK_RUNNER, {"runner": runner.id}) is not None

    return Driver(
        kind=DriverKind.RUNNER,
        id=runner.id,
        name=runner.name,
        lock=lock,
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


def pause_runner(runner: int, *, actor: Actor, reason: str) -> bool:
    """No new work until resumed; what runs goes on. False: it was paused already."""
    return _set(runner, "pause", "paused_at", {"paused_at": Now(), "pause_note": reason}, actor=actor, reason=reason)


def drain_runner(runner: int, *, actor: Actor, reason: str) -> bool:
    """No new work; the agent finishes what it has and ends. False: it was draining already."""
    return _set(runner, "drain", "draining_at", {"draining_at": Now()}, actor=actor, reason=reason)


def resume_runner(runner: int, *, actor: Actor, reason: str = "") -> bool:
    """Takes work again, after a pause or a drain. False: it did already."""
    with transaction.atomic():
        row = _lock(runner)
        if row["paused_at"] is None and row["draining_at"] is None:
            return False
        Runner.objects.filter(pk=runner).update(paused_at=None, pause_note="", draining_at=None)
        record("resume", "runner", runner, actor=actor, reason=reason)
        announce()
    return True


def revoke_runner(runner: int, *, actor: Actor, reason: str) -> int | None:
    """Its token is dead from the next call on, and its runs are taken from it. None: it was revoked already.

    Returns how many runs were taken. Their containers are the machine's to stop: it learns at its next call. Under
    strict fencing none is taken: they come free when their leases have lapsed, for until then they may be executed.
    """
    with transaction.atomic():
        row = _lock(runner)
        if row["revoked_at"] is not None:
            return None
        Runner.objects.filter(pk=runner).update(revoked_at=Now())
        driver = Driver(DriverKind.RUNNER, runner, row["name"], lambda: False)
        holds = [] if is_strict() else [(held["id"], held["epoch"]) for held in read_holds(driver)]
        taken = take_away(holds, REVOKED, detail=f"{actor.name}: {reason}", driver=driver)
        record("revoke", "runner", runner, actor=actor, reason=reason, after={"runs_taken": len(taken)})
        announce()
    return len(taken)


def _set(runner: int, verb: str, column: str, values: dict[str, Any], *, actor: Actor, reason: str) -> bool:
    with transaction.atomic():
        row = _lock(runner)
        if row["revoked_at"] is not None:
            raise Conflict(f"Runner {runner} is revoked.", code="runner_revoked")
        if row[column] is not None:
            return False
        Runner.objects.filter(pk=runner).update(**values)
        record(verb, "runner", runner, actor=actor, reason=reason)
        announce()
    return True


def _lock(runner: int) -> Row:
    row = one(sql.LOCK_RUNNER_ALONE, {"runner": runner})
    if row is None:
        raise NotFound(f"There is no runner {runner}.")
    return row


def _json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value
