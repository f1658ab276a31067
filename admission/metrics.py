"""What the ledger says of itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from admission.physical.entitlement import Unrestricted
from admission.services.physical import read_entitlement, read_slots
from admission.services.readings import read_drift
from admission.sql import metrics as sql
from admission.states import TERMINAL
from controlplane.core.conf import conf
from controlplane.core.metrics import Metric, gauge, gauges
from controlplane.core.sql import one, rows

CAP = 1_000_000
TENANTS_WITH_BACKLOG = 1_000


def collect() -> Iterator[Metric]:
    """Five statements, whatever the size of the ledger."""
    yield from _ledger()
    ended = {row["state"]: row["ended"] for row in rows(sql.READ_ENDED, {"cap": CAP})}
    yield gauges(
        "runs_ended_last_hour",
        "Runs that ended within the last hour.",
        "state",
        {str(s): ended.get(s, 0) for s in TERMINAL},
    )
    yield gauge(
        "drifting_counters", "Counters that differ from their permits. Anything but 0 is a defect.", len(read_drift())
    )
    yield from _tenants()
    yield from _physical()


def _physical() -> Iterator[Metric]:
    """No numbers where no limit is set; else two statements, and Redis, which says the same to every process."""
    limited = not isinstance(read_entitlement(), Unrestricted)
    view = read_slots() if limited else None
    snapshot = view.snapshot if view else None
    config = snapshot.config if snapshot else None
    newest = view.processes[0] if view and view.processes else None
    readable = snapshot is not None if limited else None
    yield gauge("physical_readable", "1: the slots could be read.", readable)
    yield gauges(
        "physical_slots",
        "Slots by state, and who waits for one; recovering ones are taken until their container is confirmed gone.",
        "state",
        asdict(snapshot.counts) if snapshot else {},
    )
    yield gauge("physical_limit", "Slots of the generation in force.", config.limit if config else None)
    yield gauge("physical_generation", "The generation in force.", config.generation if config else None)
    yield gauge("physical_lockdown", "1: nothing new begins.", bool(config.lockdown_id) if config else None)
    waited = max((waiter.age_seconds for waiter in snapshot.waiting), default=0.0) if snapshot else None
    yield gauge("physical_longest_wait_seconds", "Of who waits for a slot.", waited)
    there = {s: getattr(newest, f"containers_{s}") for s in ("running", "created", "other")} if newest else {}
    yield gauges("physical_containers", "Of the instance, as its newest pass found them.", "state", there)
    yield gauge("physical_pass_age_seconds", "Since that pass.", newest.age_seconds if newest else None)
    drift = len(view.drift) if view else None
    yield gauge("physical_drift", "Ways in which what is counted differs from what is there.", drift)


def _ledger() -> Iterator[Metric]:
    row = one(sql.READ_LEDGER, {"cap": CAP, "heads": TENANTS_WITH_BACKLOG}) or {}
    yield gauges(
        "runs",
        f"Runs that have not ended; queued and delayed ones are counted up to {CAP}.",
        "state",
        {state: row[state] for state in ("queued", "delayed", "admitted", "running")},
    )
    yield gauge("runs_cancelling", "Runs whose driver has not yet answered a cancel.", row["cancelling"])
    yield gauge("longest_wait_seconds", "Age of the oldest run at the head of a tenant's queue.", row["longest_wait"])
    yield gauge("permits", "Permits held, of runs and of other systems.", row["permits"])
    yield gauge("permits_lapsed", "Permits past their lease that no sweep has taken yet.", row["lapsed"])
    yield gauge("queue_depth_limit", "Queued runs beyond which submits get 429.", conf().queue_depth_global)


def _tenants() -> Iterator[Metric]:
    row = one(sql.READ_TENANTS) or {}
    kinds = {"all": "tenants", "paused": "paused", "at_quota": "full_ones", "over_quota": "over", "waiting": "waiting"}
    yield gauges(
        "tenants",
        "Tenants; over_quota ones had their quota lowered or were given a first one while busy.",
        "state",
        {name: row[column] for name, column in kinds.items()},
    )
    fullest = rows(sql.READ_FULLEST, {"rows": conf().metrics_tenants})
    shown = f"Only the {conf().metrics_tenants} fullest tenants (CONTROLPLANE_METRICS_TENANTS)."
    yield gauges(
        "permits_in_use", f"Weight in flight. {shown}", "tenant", {r["slug"]: r["in_flight"] for r in fullest}
    )
    yield gauges("permit_limit", f"Quota. {shown}", "tenant", {r["slug"]: r["limit"] for r in fullest})
