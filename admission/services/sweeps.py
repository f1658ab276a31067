"""Passes over time limits. Any process may run them at any moment: each act is judged again by its own statement."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from admission.services.runs import RUNNER_LEASE, START_DEADLINE, cancel_runs, take_away
from admission.sql import ending
from controlplane.core.audit import SYSTEM
from controlplane.core.sql import rows

BATCH = 500


@dataclass(slots=True)
class SweepResult:
    """How many runs each pass moved."""

    delayed: int = 0
    queue_deadline: int = 0
    start_deadline: int = 0
    run_deadline: int = 0
    runner_lease: int = 0

    def as_dict(self) -> dict[str, int]:
        """For log lines."""
        return asdict(self)

    def __bool__(self) -> bool:
        return any(asdict(self).values())


def sweep_deadlines() -> SweepResult:
    """One bounded pass; what is left waits for the next tick."""
    limit = {"limit": BATCH}
    result = SweepResult(
        delayed=len(rows(ending.RELEASE_DELAYED, limit)),
        queue_deadline=len(rows(ending.EXPIRE_QUEUED, limit)),
    )
    holds = [(r["id"], r["epoch"]) for r in rows(ending.READ_START_DEADLINES, limit)]
    result.start_deadline = len(take_away(holds, START_DEADLINE, detail="not started before its start deadline"))
    result.run_deadline = _end_overdue_runs(limit)
    holds = [(r["id"], r["epoch"]) for r in rows(ending.READ_LAPSED_LEASES, limit)]
    result.runner_lease = len(take_away(holds, RUNNER_LEASE, detail="the runner's lease lapsed"))
    return result


def _end_overdue_runs(limit: dict[str, int]) -> int:
    overdue = [r["id"] for r in rows(ending.READ_RUN_DEADLINES, limit)]
    return len(cancel_runs(overdue, actor=SYSTEM, reason="run time limit", cause="run_deadline"))
