"""How recovery stands now, by the database's clock. Nothing here writes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from controlplane.core.sql import one
from recovery import sql


@dataclass(frozen=True, slots=True)
class Standing:
    """For the fleet page, REST, metrics and alarms."""

    open_debts: int
    escalated: int
    held: int
    held_until: datetime | None
    claims: int
    last_pass_at: datetime | None
    last_pass_age: float | None


def read_standing() -> Standing:
    """One statement."""
    return Standing(**(one(sql.READ_STANDING) or {}))
