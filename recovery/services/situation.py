"""What one look at the database says about everything recovery could have to do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.core.conf import conf
from controlplane.core.sql import Row, one
from recovery import sql
from recovery.services.orphans import Dead

MAX_DEAD = 50
GAP_PART = 3
"""A gap in beats of this part of the window may have been an outage. A shorter one left the others two thirds of the
window to beat in, at least two beats (check E001)."""
TOGETHER = 1.25
"""Of a beat interval: those that an outage cuts off beat last within one interval before it, and what that took."""


@dataclass(frozen=True, slots=True)
class Silent:
    """An incarnation that is silent for the whole window, or declared dead."""

    dead: Dead
    declared: bool
    stale: bool
    silent_at: str
    silent_seconds: float
    held_seconds: float | None
    held_why: str
    claimant: str | None
    local: bool
    """A living replica on its machine, with its executor, can look at what it left."""


@dataclass(frozen=True, slots=True)
class Situation:
    """See `sql.READ_SITUATION`."""

    dead: Sequence[Silent]
    peers: int
    silent: Sequence[float]
    witnessed: bool
    resumed: bool
    restarted: bool
    accompanied: bool
    own_age: float | None
    expired: bool
    due: bool
    moved: bool
    ownerless: bool


def gap_seconds() -> float:
    """From which length on a gap in beats is noted as one."""
    return conf().replica_stale_seconds / GAP_PART


def together_seconds() -> float:
    """Within which time of each other silences count as one."""
    return TOGETHER * conf().heartbeat_interval_seconds


def read_situation(self_id: int | None) -> Situation:
    """One statement. Raises DatabaseError: then everyone may be alive (rule R4)."""
    settings = conf()
    row = one(
        sql.READ_SITUATION,
        {
            "self": self_id or 0,
            "stale_seconds": settings.replica_stale_seconds,
            "claim_ttl_seconds": settings.recovery_claim_ttl_seconds,
            "gap_seconds": gap_seconds(),
            "together_seconds": together_seconds(),
            "watch_seconds": 2 * settings.heartbeat_interval_seconds,
            "limit": MAX_DEAD,
        },
    )
    assert row is not None, "a SELECT without FROM has one row"  # noqa: S101 - for the type checker
    return Situation(**{**row, "dead": [_silent(found) for found in json.loads(row["dead"])]})


def _silent(found: Row) -> Silent:
    rest: dict[str, Any] = {name: found[name] for name in Silent.__slots__ if name != "dead"}
    return Silent(Dead(**{name: found[name] for name in Dead.__slots__}), **rest)
