"""The server's side of physical slots: what the environment entitles to, what passes report, what operators see.

The slots are in Redis; who executes keeps them through `admission.physical`. Here they are only read.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache

from django.conf import settings
from django.db import transaction

from admission.physical.entitlement import Entitlement, EntitlementRefused, Resolved, Unrestricted, resolve
from admission.physical.errors import PhysicalError, Refused
from admission.physical.outside import OutsideRecord, Verify
from admission.physical.protocol import PhysicalSlots, SlotsReader
from admission.physical.redis_adapter import COMMAND_SECONDS, RedisServer
from admission.physical.results import Snapshot
from admission.sql import physical as sql
from controlplane.core.audit import Actor, record
from controlplane.core.clock import database_now
from controlplane.core.errors import Conflict, InvalidInput
from controlplane.core.sql import execute, one, rows

PAGE_SECONDS = 0.4
"""A page's patience with each of the four exchanges that a new connection takes: together it never waits for 2 s."""

FORGOTTEN_SECONDS = 3600.0
SILENT_SECONDS = 120.0
"""A process without a pass for this long is shown as silent, and judged no more."""

SHOWN_PROCESSES = 200

LOST = (
    "Redis holds nothing of this instance: its data were lost. Nothing is admitted until no container of the instance "
    "is left; the latest pass found {existing}. They are being removed, and it goes on by itself; one that cannot be "
    "removed is named in the last error of a process"
)

NO_SERVER = "REDIS_URL is not set: physical slots are kept in Redis or Valkey; set it, the same for every process"


def read_entitlement() -> Resolved:
    """From the environment itself, not from the settings object: the mere presence of the secret counts (P3)."""
    return resolve(os.environ)


def make_slots(entitlement: Entitlement, outside: OutsideRecord, verify: Verify) -> PhysicalSlots:
    """This process's access to the slots. Raises Refused without a server."""
    return PhysicalSlots(_server(COMMAND_SECONDS), entitlement, outside, verify)


def _server(seconds: float) -> RedisServer:
    if not settings.REDIS_URL:
        raise Refused(NO_SERVER)
    return _opened(settings.REDIS_URL, seconds)


@lru_cache(maxsize=4)
def _opened(url: str, seconds: float) -> RedisServer:
    return RedisServer(url, seconds)


# ---------------------------------------------------------------------- what passes report


@dataclass(frozen=True, slots=True)
class PassReport:
    """One pass of one process. `process` names it across its passes, such as a replica and its incarnation."""

    process: str
    machine: str
    running: int = 0
    created: int = 0
    other: int = 0
    without_token: int = 0
    without_container: int = 0
    took_seconds: float = 0.0
    error: str = ""
    reconcile_seen: int = 0


def report_pass(entitlement: Entitlement, report: PassReport) -> None:
    """Store it in place of this process's previous one, and drop those of processes that fell silent for an hour."""
    values = {name: getattr(report, name) for name in PassReport.__dataclass_fields__}
    own = {"instance": entitlement.instance, "limit": entitlement.limit, "generation": entitlement.generation}
    execute(sql.RECORD_REPORT, {**values, **own})
    execute(sql.FORGET_OLD_REPORTS, {"age": FORGOTTEN_SECONDS})


def forget_reports(entitlement: Entitlement, process: str) -> None:
    """The process ends."""
    execute(sql.FORGET_REPORT, {"instance": entitlement.instance, "process": process})


def reconcile_number(entitlement: Entitlement) -> int:
    """The number of the latest request. A pass that begins after reading it answers it: report it as seen."""
    found = one(sql.READ_REQUEST, {"instance": entitlement.instance})
    return int(found["number"]) if found else 0


# ---------------------------------------------------------------------- the operator's verb


def reconcile_now(*, actor: Actor, reason: str) -> int:
    """Ask every process of the instance to make its pass now; returns the request's number.

    Raises:
        Conflict: nothing is counted here, or the environment is refused.
        InvalidInput: no reason.
    """
    if not reason.strip():
        raise InvalidInput("Say why: the reason goes into the audit log.")
    entitlement = read_entitlement()
    if isinstance(entitlement, EntitlementRefused):
        raise Conflict(f"Nothing is executed here: {entitlement.message}.", code="physical_refused")
    if isinstance(entitlement, Unrestricted):
        raise Conflict(
            "No physical limit is set, so there is nothing to reconcile.",
            hint="Set CONTROLPLANE_RUN_LIMIT and CONTROLPLANE_INSTANCE_ID.",
            code="physical_unrestricted",
        )
    with transaction.atomic():
        asked = one(sql.ASK_RECONCILE, {"instance": entitlement.instance, "by": actor.name, "reason": reason})
        number = int(asked["number"]) if asked else 0
        record(
            "reconcile",
            "physical slots",
            entitlement.instance_id,
            actor=actor,
            reason=reason,
            after={"request": number},
        )
    return number


# ---------------------------------------------------------------------- what operators see


@dataclass(frozen=True, slots=True)
class Process:
    """One process's latest pass."""

    process: str
    machine: str
    limit: int
    generation: int
    containers_running: int
    containers_created: int
    containers_other: int
    without_token: int
    without_container: int
    took_seconds: float
    last_error: str
    reconcile_seen: int
    age_seconds: float
    error_age_seconds: float | None

    @property
    def existing(self) -> int:
        """Containers of the instance, in any state."""
        return self.containers_running + self.containers_created + self.containers_other


@dataclass(frozen=True, slots=True)
class Request:
    """The latest request for a pass."""

    number: int
    asked_by: str
    reason: str
    age_seconds: float


@dataclass(frozen=True, slots=True)
class SlotsView:
    """Everything that is known, as of one time. Without `snapshot`, `error` says why there is none."""

    as_of: datetime
    entitlement: Resolved
    snapshot: Snapshot | None = None
    error: str = ""
    processes: tuple[Process, ...] = ()
    request: Request | None = None
    drift: tuple[str, ...] = field(default=())


def read_slots() -> SlotsView:
    """Two statements and one script. Never waits for Redis longer than 2 s, and says so when it did not answer."""
    entitlement, as_of = read_entitlement(), database_now()
    if not isinstance(entitlement, Entitlement):
        error = entitlement.message if isinstance(entitlement, EntitlementRefused) else ""
        return SlotsView(as_of, entitlement, error=error)
    snapshot, error = _snapshot(entitlement)
    processes = read_processes(entitlement)
    asked = one(sql.READ_REQUEST, {"instance": entitlement.instance})
    drift = tuple(_drift(entitlement, snapshot, processes))
    return SlotsView(as_of, entitlement, snapshot, error, processes, Request(**asked) if asked else None, drift)


def read_processes(entitlement: Entitlement) -> tuple[Process, ...]:
    """The latest pass of each process, those heard last first. One statement, and nobody but the database is asked."""
    found = rows(sql.READ_REPORTS, {"instance": entitlement.instance, "most": SHOWN_PROCESSES})
    return tuple(Process(**row) for row in found)


def _snapshot(entitlement: Entitlement) -> tuple[Snapshot | None, str]:
    try:
        return SlotsReader(_server(PAGE_SECONDS), entitlement.instance).read(), ""
    except PhysicalError as error:
        return None, str(error)


def _drift(entitlement: Entitlement, snapshot: Snapshot | None, processes: tuple[Process, ...]) -> list[str]:
    """What is counted and what is there, where they differ. The newest pass counts: all look at one daemon."""
    found = []
    if processes:
        newest = processes[0]
        if newest.without_token:
            found.append(f"containers without a slot: {newest.without_token}; they are being removed")
        if newest.without_container:
            found.append(f"slots whose container is not there: {newest.without_container}")
    config = snapshot.config if snapshot else None
    if snapshot is not None and config is None and processes:
        # A process reports its passes only when one has begun the ledger, or found why none can begin.
        found.append(LOST.format(existing=processes[0].existing))
    if config is not None and (config.generation, config.limit) != (entitlement.generation, entitlement.limit):
        found.append(
            f"generation {config.generation} with limit {config.limit} is in force, this process has generation "
            f"{entitlement.generation} with limit {entitlement.limit}"
        )
    heard = [p for p in processes if p.age_seconds <= SILENT_SECONDS]
    others = sorted({p.process for p in heard if config and p.generation != config.generation})
    if others:
        found.append(f"of another generation than the one in force: {', '.join(others)}")
    return found
