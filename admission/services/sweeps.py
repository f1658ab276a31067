"""Passes over time limits. Any process may run them at any moment: each act is judged again by its own statement.

Each function is one step of a loop (`admission.loops`): one bounded batch, in the caller's transaction where there is
one. They are not joined into one transaction, because each locks runs and then counters, and only within one statement
is that the lock order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from admission.models import Tenant
from admission.services.runs import RUNNER_LEASE, START_DEADLINE, cancel_runs, take_away
from admission.services.tenants import resume_tenant
from admission.sql import ending, sweeping
from controlplane.core.audit import SYSTEM
from controlplane.core.conf import conf
from controlplane.core.loops import Progress
from controlplane.core.outages import held
from controlplane.core.sql import one, rows
from controlplane.core.wakeups import announce
from controlplane.core.web_sign import web_is_away

BATCH = 500
LIMIT = {"limit": BATCH}
OVER = "the pause was set to end now"


@dataclass(slots=True)
class SweepResult:
    """How many runs each pass moved."""

    delayed: int = 0
    queue_deadline: int = 0
    start_deadline: int = 0
    run_deadline: int = 0
    pause_over: int = 0
    runner_lease: int = 0

    def __bool__(self) -> bool:
        return any(asdict(self).values())


def sweep_deadlines() -> SweepResult:
    """Each pass once, by hand: one bounded batch and one transaction each, without a leader."""
    passes = (
        release_delayed,
        expire_queued,
        pass_start_deadlines,
        pass_run_deadlines,
        end_pauses,
        pass_runner_leases,
    )
    result = SweepResult()
    for one_pass in passes:
        for name, count in one_pass().counts.items():
            if hasattr(result, name):
                setattr(result, name, count)
    return result


def _progress(name: str, candidates: Sequence[object], done: int) -> Progress:
    """A full batch that moved something is followed by another. One that moved nothing is left to the next fire: its
    rows are under somebody's lock, or their cause was gone."""
    return Progress({name: done}, more=len(candidates) == BATCH and done > 0)


def release_delayed() -> Progress:
    """Delayed runs whose time has come join the queue."""
    moved = rows(ending.RELEASE_DELAYED, LIMIT)
    if moved:
        announce()
    return _progress("delayed", moved, len(moved))


def expire_queued() -> Progress:
    """Runs that waited past their queue deadline end."""
    ended = rows(ending.EXPIRE_QUEUED, LIMIT)
    return _progress("queue_deadline", ended, len(ended))


def pass_start_deadlines() -> Progress:
    """Admitted runs that were not started in time go back."""
    late = [(r["id"], r["epoch"]) for r in rows(ending.READ_START_DEADLINES, LIMIT)]
    taken = take_away(late, START_DEADLINE, detail="not started before its start deadline")
    return _progress("start_deadline", late, len(taken))


def pass_run_deadlines() -> Progress:
    """Runs past their time are asked to stop."""
    overdue = [r["id"] for r in rows(ending.READ_RUN_DEADLINES, LIMIT)]
    asked = cancel_runs(overdue, actor=SYSTEM, reason="run time limit", cause="run_deadline")
    return _progress("run_deadline", overdue, len(asked))


def end_pauses() -> Progress:
    """Tenants whose pause has an end that passed are admitted again."""
    due = list(Tenant.objects.filter(pk__in=[r["id"] for r in rows(sweeping.READ_PAUSES_OVER, LIMIT)]))
    resumed = [tenant for tenant in due if resume_tenant(tenant, actor=SYSTEM, reason=OVER, if_due=True)]
    return _progress("pause_over", due, len(resumed))


def pass_runner_leases() -> Progress:
    """Runs of silent runners go back (rule Q6), unless all runners fell silent at once: then it was not them.

    The last call that any of them had accepted shows in the leases themselves. If it is older than two heartbeats, one
    full lease is waited, once, so that they can come back. While no web process lives none of them could call: then
    as long as that lasts is waited, and one lease after it.
    """
    if web_is_away():
        return Progress({"runner_lease": 0, "held_after_outage": True})
    settings = conf()
    sign = one(sweeping.READ_LAST_RUNNER_CALL, {"lease": settings.runner_lease_seconds})
    if sign is None or sign["at"] is None:
        return Progress({"runner_lease": 0})
    gap, length = 2 * settings.runner_heartbeat_seconds, settings.runner_lease_seconds
    if held("runner_lease", gap=gap, length=length, sign=sign["at"]):
        return Progress({"runner_lease": 0, "held_after_outage": True})
    lapsed = [(r["id"], r["epoch"]) for r in rows(ending.READ_LAPSED_LEASES, LIMIT)]
    taken = take_away(lapsed, RUNNER_LEASE, detail="the runner's lease lapsed")
    return _progress("runner_lease", lapsed, len(taken))
