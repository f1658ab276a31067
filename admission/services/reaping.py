"""Reaping what lapsed (rules A11, A12): by the lease, never by age, and only where renewing was possible.

A run's permit is never reaped alone: its run is taken over, so the driver that fell silent is fenced by the epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from django.db import transaction

from admission.services.runs import Cause, take_away
from admission.sql import sweeping as sql
from admission.states import DriverKind, Scope
from controlplane.core.conf import conf
from controlplane.core.loops import Progress
from controlplane.core.outages import clear, held
from controlplane.core.sql import rows
from controlplane.core.web_sign import web_is_away

BATCH = 500
MOST_LIMITS = 20
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
    taken = _take_lapsed(candidates)
    return Progress({"runs": taken}, more=len(candidates) == BATCH and bool(taken))


def _take_lapsed(candidates: Sequence[int]) -> int:
    """Take over those of these runs whose permits lapsed; how many.

    Not those of runners while nobody could be called: a runner renews with its calls only (rule Q6).
    """
    if not candidates:
        return 0
    kept = {DriverKind.RUNNER} if web_is_away() else set()
    with transaction.atomic():
        locked = rows(sql.LOCK_RUNS, {"runs": candidates})
        holds = {r["id"]: r["epoch"] for r in locked if r["driver_kind"] not in kept}
        lapsed = {r["id"] for r in rows(sql.LOCK_LAPSED, {"runs": list(holds)})}
        taken = take_away(
            sorted((run, holds[run]) for run in lapsed), PERMIT_LAPSE, detail="its driver did not renew its permit"
        )
    return len(taken)


def reap_outside_permits() -> Progress:
    """Free the lapsed permits of other systems. One batch."""
    if not clear(HOLD, gap=_gap()):
        return Progress({"permits": 0})
    freed = rows(sql.REAP_OUTSIDE, {"scope": None, "key": None, "limit": BATCH})
    return Progress({"permits": len(freed)}, more=len(freed) == BATCH)


def reap_limit(scope: Scope, key: str) -> int:
    """After a refusal, in another transaction: that one limit's lapsed permits (rule A12); how many came back.

    Those of outside systems are freed, those of runs go with a takeover of their run.
    """
    if not clear(HOLD, gap=_gap()):
        return 0
    which = {"scope": scope.value, "key": key, "limit": BATCH}
    freed = len(rows(sql.REAP_OUTSIDE, which))
    return freed + _take_lapsed([r["id"] for r in rows(sql.READ_LAPSED_UNDER_LIMIT, which)])


def _limits() -> dict[str, float]:
    return {"lapse": conf().permit_lapse_seconds, "limit": BATCH}


class _OncePerSecond:
    """Idle drivers ask again and again; one look a second in each process finds what lapsed as well."""

    def __init__(self) -> None:
        self._at = float("-inf")

    def due(self) -> bool:
        """Whether the last look is long enough ago; then this is one."""
        now = monotonic()
        if now - self._at < 1:
            return False
        self._at = now
        return True

    def forget(self) -> None:
        """Look again at the next call."""
        self._at = float("-inf")


looks = _OncePerSecond()


def reap_refusing() -> int:
    """For a driver that got less than it could start: lapsed permits of limits that may have kept it from more.

    Tenants at their cap are not even read by an admission, so no claim of theirs is ever refused; this stands in for
    the refusal. One index probe where nothing lapsed. Never inside a transaction that holds runs.
    """
    if not looks.due():
        return 0
    which = {"lapse": conf().permit_lapse_seconds, "limit": MOST_LIMITS}
    found = rows(sql.READ_LAPSED_LIMITS, which)
    return sum(reap_limit(Scope(row["scope"]), row["key"]) for row in found)
