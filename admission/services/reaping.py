"""Reaping what lapsed (rules A11, A12): by the lease, never by age, and only where renewing was possible.

A run's permit is never reaped alone: its run is taken over, so the driver that fell silent is fenced by the epoch.
"""

from __future__ import annotations

from django.db import transaction

from admission.services.runs import Cause, take_away
from admission.sql import sweeping as sql
from admission.states import Scope
from controlplane.core.conf import conf
from controlplane.core.loops import Progress
from controlplane.core.outages import clear, held
from controlplane.core.sql import rows

BATCH = 500
HOLD = "permit_reap"

PERMIT_LAPSE = Cause("permit_lapse", sql.PERMIT_LAPSED)


def _gap() -> float:
    """The shortest pause between two passes that can have been an outage in which a living holder's permit lapsed.

    A permit lives at least three renewals (check E002); one that was renewed on time before an outage of half a
    renewal is at most one and a half old after it.
    """
    return conf().permit_renew_seconds / 2


def reap_run_permits() -> Progress:
    """Take over the runs whose permits lapsed. One batch, in the caller's transaction."""
    if held(HOLD, gap=_gap(), length=conf().permit_renew_seconds):
        return Progress({"runs": 0, "held_after_outage": True})
    candidates = [r["id"] for r in rows(sql.READ_LAPSED_RUN_PERMITS, _limits())]
    if not candidates:
        return Progress({"runs": 0})
    with transaction.atomic():
        holds = {r["id"]: r["epoch"] for r in rows(sql.LOCK_RUNS, {"runs": candidates})}
        lapsed = {r["id"] for r in rows(sql.LOCK_LAPSED, {"runs": list(holds)})}
        taken = take_away(
            sorted((run, holds[run]) for run in lapsed), PERMIT_LAPSE, detail="its driver did not renew its permit"
        )
    return Progress({"runs": len(taken)}, more=len(candidates) == BATCH and bool(taken))


def reap_outside_permits() -> Progress:
    """Free the lapsed permits of other systems. One batch."""
    if not clear(HOLD, gap=_gap()):
        return Progress({"permits": 0})
    freed = rows(sql.REAP_OUTSIDE, {"scope": None, "key": None, "limit": BATCH})
    return Progress({"permits": len(freed)}, more=len(freed) == BATCH)


def reap_limit(scope: Scope, key: str) -> int:
    """After a refusal, in another transaction: free that one limit's lapsed outside permits (rule A12)."""
    if not clear(HOLD, gap=_gap()):
        return 0
    return len(rows(sql.REAP_OUTSIDE, {"scope": scope.value, "key": key, "limit": BATCH}))


def _limits() -> dict[str, float]:
    return {"lapse": conf().permit_lapse_seconds, "limit": BATCH}
