"""Replicas as `why` sees them."""

from __future__ import annotations

from admission.driver_facts import DriverFacts
from admission.services.probes import max_age
from admission.states import DriverKind
from controlplane.core.conf import conf
from controlplane.core.sql import rows
from recovery import sql


def read_replica_facts(limit: int) -> list[DriverFacts]:
    """Those heard last. Live: not declared dead, and heard within the window."""
    parameters = {"limit": limit, "stale_seconds": conf().replica_stale_seconds, "age": max_age()}
    return [
        DriverFacts(
            kind=DriverKind.REPLICA,
            id=row["id"],
            name=row["name"],
            slots=row["slots"],
            held=row["held"],
            live=row["live"],
            gone=row["gone"],
            draining=row["draining"],
            alive_seconds_ago=row["heard"],
            backends=(row["executor"],),
            memory_mib=row["memory_mib"],
            cpu=row["cpu"],
            # Unknown is nothing left, as at a claim.
            free_memory_mib=row["memory_mib"] - row["memory_used"] if row["memory_mib"] else None,
            free_cpu=row["cpu"] - row["cpu_used"] if row["cpu"] else None,
        )
        for row in rows(sql.READ_FACTS, parameters)
    ]
