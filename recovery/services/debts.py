"""Debts: runs of dead replicas that could not be decided yet (rule R9). Opened here, looked at here, never dropped."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from django.db import transaction

from controlplane.core.audit import Actor, record
from controlplane.core.conf import conf
from controlplane.core.errors import Conflict, NotFound
from controlplane.core.sql import one, rows
from recovery import sql
from recovery.models import Outcome, RecoveryDebt
from recovery.services.orphans import Dead, Orphan
from recovery.services.reporting import Journal
from runners.agent.assignment import RunKey

log = logging.getLogger(__name__)

ESCALATE_AFTER = 5
LONGEST_SECONDS = 3600.0
BATCH = 500


@dataclass(frozen=True, slots=True)
class Due:
    """A debt that is this process's to look at now."""

    id: int
    dead: Dead
    orphan: Orphan


def open_debts(dead: Dead, silent_at: object, reasons: Mapping[Orphan, str], journal: Journal) -> None:
    """From now on each is owed. One that moved on meanwhile is not; one that is owed already stays as it is."""
    if not reasons:
        return
    known = {orphan.key: orphan for orphan in reasons}
    with transaction.atomic():
        opened = rows(
            sql.OPEN_DEBTS,
            {
                "name": dead.name,
                "machine": dead.machine,
                "dead": json.dumps(asdict(dead)),
                "silent_at": silent_at,
                "runs": [orphan.run for orphan in reasons],
                "epochs": [orphan.epoch for orphan in reasons],
                "reasons": list(reasons.values()),
                "wait_seconds": conf().recovery_interval_seconds,
            },
        )
        noted = [(known[RunKey(row["run_id"], row["epoch"])], row["reason"]) for row in opened]
        journal.note(Outcome.DEFERRED, dead.name, noted)
    for orphan, why in noted:
        journal.report.left_alone.append({"replica": dead.name, "why": f"run {orphan.run}: {why}"})


def take_due(machine: str) -> list[Due]:
    """Debts whose time has come and that can be looked at from here; each is ours until its next time."""
    settings = conf()
    found = rows(
        sql.TAKE_DUE,
        {
            "machine": machine,
            "stale_seconds": settings.replica_stale_seconds,
            "wait_seconds": settings.recovery_interval_seconds,
            "longest_seconds": LONGEST_SECONDS,
            "limit": BATCH,
        },
    )
    return [_due(row) for row in found]


def _due(row: dict[str, Any]) -> Due:
    # A run that is gone, or ended, is no orphan: what is proved of it later (its epoch, its being open) fails then.
    orphan = Orphan(row["run_id"], row["epoch"], row["attempt"] or 0, row["state"] or "")
    return Due(row["id"], Dead(**json.loads(row["dead"])), orphan)


def keep_debts(reasons: Mapping[Due, str], journal: Journal) -> None:
    """Still undecided: why, and after enough attempts the operators are told."""
    if not reasons:
        return
    given = {"debts": [due.id for due in reasons], "reasons": list(reasons.values())}
    with transaction.atomic():
        kept = rows(sql.KEEP_DEBTS, {**given, "escalate_after": ESCALATE_AFTER})
        for row in kept:
            found = [(Orphan(row["run_id"], row["epoch"], 0, ""), f"attempt {row['attempts']}: {row['reason']}")]
            outcome = Outcome.ESCALATED if row["escalated_now"] else Outcome.DEFERRED
            journal.note(outcome, row["replica_name"], found)
    for row in kept:
        why = f"run {row['run_id']}: {row['reason']}"
        journal.report.left_alone.append({"replica": row["replica_name"], "why": why})
        if row["escalated_now"]:
            log.error("recovery.debt_escalated", extra={"run": row["run_id"], "why": row["reason"]})


def close_debts(outcome: Outcome, debts: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """Those whose epoch is over are paid. `debts`: of these; None: of all."""
    return rows(sql.CLOSE_DEBTS, {"outcome": outcome.value, "debts": None if debts is None else list(debts)})


def settle_moved(journal: Journal) -> None:
    """Debts whose run ended or changed hands without recovery: the driver was not dead, or an operator acted."""
    with transaction.atomic():
        for row in close_debts(Outcome.ALREADY_SETTLED):
            found = [(Orphan(row["run_id"], row["epoch"], 0, ""), "its run moved on while it was owed")]
            journal.note(Outcome.ALREADY_SETTLED, row["replica_name"], found)


def retry_debt(debt_id: int, *, actor: Actor, reason: str) -> RecoveryDebt:
    """Have it looked at by the next pass instead of at its own time. The count of attempts stays.

    Raises:
        NotFound: there is no such debt.
        Conflict: it is closed.
    """
    debt = RecoveryDebt.objects.filter(pk=debt_id).first()
    if debt is None:
        raise NotFound(f"There is no debt {debt_id}.")
    with transaction.atomic():
        if one(sql.RETRY_DEBT, {"debt": debt_id}) is None:
            raise Conflict(f"Debt {debt_id} is closed: its run moved on.", code="debt_closed")
        before = {"next_at": debt.next_at.isoformat(), "attempts": debt.attempts}
        record("retry", "recovery debt", debt_id, actor=actor, reason=reason, before=before)
    debt.refresh_from_db()
    return debt
