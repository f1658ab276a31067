"""What stands in the ledger now; nothing here locks or writes."""

from __future__ import annotations

from dataclasses import dataclass

from admission.sql import readings as sql
from admission.sql import sweeping
from controlplane.core.conf import conf
from controlplane.core.sql import Row, one, rows


@dataclass(frozen=True, slots=True)
class Drift:
    """A counter that differs from the sum of its permits: must never exist (rule A5)."""

    scope: str
    key: str
    in_flight: int
    permits: int
    limit: int | None


def read_in_flight() -> dict[int, int]:
    """Weight in flight by tenant, exactly as rule A3 counts it."""
    return {row["tenant_id"]: row["in_flight"] for row in rows(sql.READ_IN_FLIGHT)}


def read_drift() -> list[Drift]:
    """Violations of conservation, in one snapshot."""
    return [Drift(**row) for row in rows(sql.READ_DRIFT)]


def read_highest_concurrency(tenant_id: int) -> int:
    """The highest weight this tenant ever held at once, from its attempts' exact times (rule A30)."""
    row = one(sql.READ_HIGHEST_CONCURRENCY, {"tenant_id": tenant_id})
    return int(row["highest"]) if row else 0


def read_stuck(limit: int = 100) -> list[Row]:
    """Runs that should have moved and did not: id, tenant, why, driver_name, seconds. Bounded."""
    settings = conf()
    return rows(
        sweeping.READ_STUCK,
        {"stuck": settings.stuck_seconds, "queued": settings.stuck_queued_seconds, "limit": limit},
    )
