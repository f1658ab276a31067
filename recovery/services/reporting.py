"""What a pass of recovery did, and what it left alone, and why: counted for its caller, and written as rows (R16)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from controlplane.core.sql import execute, rows
from recovery import sql
from recovery.models import Outcome, RecoveryAction
from recovery.services.orphans import Orphan

COUNTED = (
    Outcome.ADOPTED,
    Outcome.ALREADY_SETTLED,
    Outcome.REQUEUED,
    Outcome.INTERRUPTED,
    Outcome.CANCELLED,
    Outcome.TIMED_OUT,
    Outcome.DEFERRED,
    Outcome.ESCALATED,
)


@dataclass(slots=True)
class Report:
    """Counts of runs by outcome, replicas done with, and what was left alone."""

    adopted: int = 0
    already_settled: int = 0
    requeued: int = 0
    interrupted: int = 0
    cancelled: int = 0
    timed_out: int = 0
    deferred: int = 0
    escalated: int = 0
    finished: list[str] = field(default_factory=list)
    left_alone: list[dict[str, str]] = field(default_factory=list)
    expired_claims: int = 0
    error: str = ""

    def as_dict(self) -> dict[str, object]:
        """For JSON and log lines."""
        return asdict(self)

    def did_something(self) -> bool:
        """Whether the pass is worth a line in the log: it moved a run, or had to put one off."""
        return bool(self.finished) or any(getattr(self, outcome) for outcome in COUNTED)

    def count(self, outcome: Outcome, number: int = 1) -> None:
        """Add to one outcome."""
        setattr(self, outcome, getattr(self, outcome) + number)


@dataclass(frozen=True, slots=True)
class Journal:
    """Writes the rows of one pass, and counts. `by`: who recovers."""

    by: str
    report: Report

    def note(self, outcome: Outcome, replica: str, orphans: Iterable[tuple[Orphan, str]]) -> None:
        """One row for each run, in the caller's transaction where there is one."""
        noted = list(orphans)
        if not noted:
            return
        execute(
            sql.NOTE_RUNS,
            {
                "by": self.by,
                "replica": replica,
                "outcome": outcome.value,
                "runs": [orphan.run for orphan, _ in noted],
                "epochs": [orphan.epoch for orphan, _ in noted],
                "reasons": [reason for _, reason in noted],
            },
        )
        self.report.count(outcome, len(noted))

    def left_alone(self, replica: str, why: str) -> None:
        """A replica that was left alone; its row is written once an hour."""
        self.report.left_alone.append({"replica": replica, "why": why})
        rows(sql.NOTE_LEFT_ALONE, {"by": self.by, "replica": replica, "why": why})

    def deferred(self, replica: str, why: str) -> None:
        """A replica whose work has to wait as a whole."""
        self.report.count(Outcome.DEFERRED)
        self.report.left_alone.append({"replica": replica, "why": why})
        RecoveryAction.objects.create(by=self.by, replica_name=replica, outcome=Outcome.DEFERRED, reason=why)
