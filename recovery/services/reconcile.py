"""Reconciliation: what a dead replica held is settled, requeued or interrupted, by exactly one survivor.

Runs at boot and every minute on every replica, not only on a leader: a claim per dead incarnation makes it exclusive.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from django.db import DatabaseError, transaction

from admission.services.probes import forget_probe
from admission.services.runs import Cause, Ended, take_away
from admission.states import DriverKind, RunState
from controlplane.core.conf import conf
from controlplane.core.fencing import is_strict
from controlplane.core.sql import Row, one, rows
from recovery import sql
from recovery.models import RecoveryAction
from recovery.services.deaths import declare_and_claim
from recovery.services.orphans import Adopt, Dead, Finding, LeftoversRemain, Orphan, Sweep
from runners.agent.assignment import RunKey

log = logging.getLogger(__name__)

MAX_DEAD = 50

DRIVER_DEAD = Cause("driver_dead", sql.DRIVER_DEAD)
DRIVER_DEAD_FENCED = Cause("driver_dead", sql.DRIVER_DEAD_FENCED)
DRIVER_ABSENT = Cause("driver_absent", sql.DRIVER_ABSENT)

OUTCOMES = {RunState.QUEUED: "requeued", RunState.INTERRUPTED: "interrupted"}


@dataclass(frozen=True, slots=True)
class Hands:
    """Who reconciles, and what it can do on its machine. `manage.py recover` has neither: it never drives."""

    claimant: str
    by: str
    adopt: Adopt | None
    sweep: Sweep | None


@dataclass(slots=True)
class Report:
    """What one pass did, and what it deliberately left alone, and why."""

    adopted: int = 0
    requeued: int = 0
    interrupted: int = 0
    cancelled: int = 0
    deferred: int = 0
    finished: list[str] = field(default_factory=list)
    left_alone: list[dict[str, str]] = field(default_factory=list)
    expired_claims: int = 0
    error: str = ""

    def as_dict(self) -> dict[str, object]:
        """For JSON and log lines."""
        return asdict(self)

    def did_something(self) -> bool:
        """Whether the pass is worth a line in the log: it moved a run, or had to put one off."""
        return bool(
            self.adopted or self.requeued or self.interrupted or self.cancelled or self.deferred or self.finished
        )


def read_situation(self_id: int | None) -> list[Row]:
    """Incarnations that are stale or declared dead, other than our own."""
    settings = conf()
    return rows(
        sql.READ_SITUATION,
        {
            "self": self_id or 0,
            "stale_seconds": settings.replica_stale_seconds,
            "claim_ttl_seconds": settings.recovery_claim_ttl_seconds,
            "limit": MAX_DEAD,
        },
    )


def reconcile(
    *,
    claimant: str,
    by: str,
    self_id: int | None = None,
    adopt: Adopt | None = None,
    sweep: Sweep | None = None,
    dry_run: bool = False,
) -> Report:
    """One pass. An unreadable live set means that everyone may be alive: nothing is touched, `error` says so (R4)."""
    report = Report()
    try:
        situation = read_situation(self_id)
    except DatabaseError as error:
        report.error = f"the heartbeats cannot be read, so everyone may be alive: nothing was reclaimed ({error})"
        log.warning("recovery.unreadable", extra={"error": str(error)})
        return report
    for dead in situation:
        if dry_run:
            report.left_alone.append({"replica": dead["name"], "why": "dry run"})
            continue
        if _claim(dead, claimant, report):
            _reconcile_one(dead, Hands(claimant, by, adopt, sweep), report)
    if not dry_run:
        _take_ownerless(by, report)
        if any(dead["expired"] for dead in situation):
            report.expired_claims = len(
                rows(sql.EXPIRE_CLAIMS, {"claim_ttl_seconds": conf().recovery_claim_ttl_seconds})
            )
    return report


def _claim(dead: Row, claimant: str, report: Report) -> bool:
    if dead["claimant"] == claimant:
        return True
    if dead["claimant"] is not None:
        report.left_alone.append({"replica": dead["name"], "why": f"claimed by {dead['claimant']}"})
        return False
    if declare_and_claim(dead["id"], claimant=claimant, proof="stale"):
        return True
    report.left_alone.append({"replica": dead["name"], "why": "claimed by another, or alive after all"})
    return False


def _reconcile_one(dead: Row, hands: Hands, report: Report) -> None:
    if is_strict() and not dead["stale"]:
        report.deferred += 1
        left = conf().replica_stale_seconds - dead["silent_seconds"]
        why = f"strict fencing: what it executes is stopped for certain in {max(left, 0):.0f} s; its runs wait"
        report.left_alone.append({"replica": dead["name"], "why": why})
        return
    found: dict[RunKey, Finding] = {}
    try:
        if hands.adopt is not None:
            for orphans in _orphans(dead, hands, report):
                found.update(_adopt(hands.adopt, dead, orphans, hands, report))
        if hands.sweep is not None:
            hands.sweep(_dead(dead))
    except LeftoversRemain as left:
        report.deferred += 1
        report.left_alone.append({"replica": dead["name"], "why": str(left)})
        _note(hands.by, dead["name"], None, "deferred", str(left))
        return
    for orphans in _orphans(dead, hands, report):
        rest = [orphan for orphan in orphans if orphan.key not in found]
        _take(rest, DRIVER_DEAD_FENCED if is_strict() else DRIVER_DEAD, dead["name"], hands.by, report)
    _finish(dead, hands, report)


def _orphans(dead: Row, hands: Hands, report: Report) -> Iterator[list[Orphan]]:
    """Batches, for as long as the claim is ours: it is renewed before each."""
    after = 0
    while True:
        if one(sql.RENEW_CLAIM, {"replica": dead["id"], "claimant": hands.claimant}) is None:
            report.left_alone.append({"replica": dead["name"], "why": "the claim went to another"})
            return
        limit = conf().recovery_batch_size
        found = rows(sql.READ_ORPHANS, {"replica": dead["id"], "after": after, "limit": limit})
        if not found:
            return
        after = found[-1]["id"]
        yield [Orphan(row["id"], row["epoch"], row["attempt"], row["state"]) for row in found]


def _dead(row: Row) -> Dead:
    known = {name: row[name] for name in Dead.__slots__}
    return Dead(**{**known, "incarnation": str(row["incarnation"])})


def _adopt(
    adopt: Adopt, dead: Row, orphans: Sequence[Orphan], hands: Hands, report: Report
) -> Mapping[RunKey, Finding]:
    found = adopt(_dead(dead), orphans)
    for key, finding in found.items():
        _note(hands.by, dead["name"], key.run, finding.outcome, finding.why)
        if finding.outcome == "adopted":
            report.adopted += 1
        else:
            report.deferred += 1
            report.left_alone.append({"replica": dead["name"], "why": f"run {key.run}: {finding.why}"})
    return found


def _finish(dead: Row, hands: Hands, report: Report) -> None:
    with transaction.atomic():
        ours = one(sql.DROP_CLAIM, {"replica": dead["id"], "claimant": hands.claimant}) is not None
        finished = ours and one(sql.FINISH, {"replica": dead["id"]}) is not None
        if finished:
            forget_probe(DriverKind.REPLICA, dead["id"])
    if finished:
        report.finished.append(dead["name"])


def _take_ownerless(by: str, report: Report) -> None:
    found = rows(sql.READ_OWNERLESS, {"limit": conf().recovery_batch_size})
    orphans = [Orphan(row["id"], row["epoch"], row["attempt"], row["state"]) for row in found]
    if orphans:
        _take(orphans, DRIVER_ABSENT, "(no replica row)", by, report)


def _take(orphans: Sequence[Orphan], cause: Cause, replica: str, by: str, report: Report) -> None:
    holds = [(o.run, o.epoch) for o in orphans]
    with transaction.atomic():
        window = {"stale_seconds": conf().replica_stale_seconds}
        taken = take_away(holds, cause, detail=f"replica {replica} died", parameters=window)
        RecoveryAction.objects.bulk_create([_action(ended, replica, by, cause) for ended in taken])
    for ended in taken:
        if ended.state is RunState.QUEUED:
            report.requeued += 1
        elif ended.state is RunState.INTERRUPTED:
            report.interrupted += 1
        else:
            report.cancelled += 1


def _action(ended: Ended, replica: str, by: str, cause: Cause) -> RecoveryAction:
    return RecoveryAction(
        by=by,
        replica_name=replica,
        run_id=ended.run,
        outcome=OUTCOMES.get(ended.state, ended.state.value),
        reason=f"{cause.name}: attempt {ended.attempt} ended with its driver",
    )


def _note(by: str, replica: str, run: int | None, outcome: str, reason: str) -> None:
    RecoveryAction.objects.create(by=by, replica_name=replica, run_id=run, outcome=outcome, reason=reason)
