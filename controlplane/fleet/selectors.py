"""What the fleet page shows, read anew for every answer: eleven statements, whatever the size of the fleet."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from admission.physical.entitlement import EntitlementRefused, Unrestricted
from admission.services.physical import SILENT_SECONDS, read_entitlement, read_processes
from controlplane.admin_base.drivers import Health, judge_health
from controlplane.admin_base.render import span
from controlplane.core.conf import conf
from controlplane.core.models import AuditEntry
from controlplane.core.sql import Row, one, rows
from controlplane.fleet import sql
from controlplane.fleet.charts import READ_DAY, Day, draw_day
from leadership.election import LOOPS
from leadership.selectors import Alarm, LeaseState, read_alarms, read_leases
from recovery.selectors import Standing, read_standing

COUNT_CAP = 100_000
ENDED_CAP = 50_000
TENANT_QUEUE_CAP = 10_000
TENANT_ROWS = 12
TENANTS_WITH_BACKLOG = 1000
DRIVER_ROWS = 40
AUDIT_ROWS = 7
MINUTES = 60
CHART_HEIGHT = 60

ENDINGS = ("succeeded", "failed", "timed_out", "interrupted", "cancelled")

ALARM_NAMES = {
    "no_leader": "No leader",
    "no_qcluster": "No qcluster",
    "loop_failing": "Failing loop",
    "intents_given_up": "Notifications",
}


@dataclass(frozen=True, slots=True)
class Tile:
    """One number of the top row, and where it leads."""

    label: str
    value: str
    tone: str
    query: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class TenantUse:
    """One tenant's line."""

    pk: int
    slug: str
    name: str
    used: int
    limit: int | None
    queued: int
    paused: bool


@dataclass(frozen=True, slots=True)
class DriverLine:
    """One replica or runner."""

    kind: str
    pk: int
    name: str
    health: Health
    paused: bool
    heard_seconds_ago: float | None
    runs: int
    slots: int
    version: str
    how: str


@dataclass(frozen=True, slots=True)
class Component:
    """One part of the machinery and how it is."""

    name: str
    tone: str
    text: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class MinuteBar:
    """One minute of the chart, in the units of its drawing."""

    left: int
    good_top: str
    good_height: str
    other_top: str
    other_height: str


@dataclass(slots=True)
class Fleet:
    """One reading."""

    now: datetime
    tiles: list[Tile]
    tenants: list[TenantUse]
    tenants_total: int
    drivers: list[DriverLine]
    components: list[Component]
    audit: Sequence[AuditEntry]
    minutes: list[MinuteBar] = field(default_factory=list)
    ended_last_hour: str = "0"
    day: Day | None = None


def read_fleet() -> Fleet:
    """One reading of everything. Numbers of different panels may be milliseconds apart; each panel is one snapshot."""
    started = time.perf_counter()
    states = one(sql.READ_STATES, {"cap": COUNT_CAP + 1, "tenants": TENANTS_WITH_BACKLOG}) or {}
    latency = time.perf_counter() - started
    ended = {row["state"]: row["ended"] for row in rows(sql.READ_ENDED, {"cap": ENDED_CAP})}
    tenants = rows(sql.READ_TENANTS, {"rows": TENANT_ROWS, "cap": TENANT_QUEUE_CAP + 1})
    drivers = [_driver(row) for row in rows(sql.READ_DRIVERS, {"rows": DRIVER_ROWS})]
    permits = one(sql.READ_PERMITS) or {}
    minutes = rows(sql.READ_MINUTES, {"cap": ENDED_CAP})
    return Fleet(
        now=states["now"],
        tiles=_tiles(states, ended),
        tenants=[_tenant(row) for row in tenants],
        tenants_total=tenants[0]["tenants"] if tenants else 0,
        drivers=drivers,
        components=[
            *_components(states, permits, drivers, latency),
            *_leadership(read_leases(), read_alarms()),
            _recovery(read_standing()),
        ],
        audit=list(AuditEntry.objects.order_by("-id")[:AUDIT_ROWS]),
        minutes=_chart(minutes),
        day=draw_day(rows(READ_DAY)),
        ended_last_hour=_number(sum(row["good"] + row["other"] for row in minutes), ENDED_CAP - 1),
    )


def _number(count: int, cap: int) -> str:
    return f"{cap:,}+" if count > cap else f"{count:,}"


def _tiles(states: Row, ended: dict[str, int]) -> list[Tile]:
    delayed = f"{_number(states['delayed'], COUNT_CAP)} more delayed" if states["delayed"] else ""
    tiles = [
        Tile("queued", _number(states["queued"], COUNT_CAP), "wait", "state__exact=queued", delayed),
        Tile("admitted", f"{states['admitted']:,}", "ready", "state__exact=admitted"),
        Tile("running", f"{states['running']:,}", "run", "state__exact=running"),
    ]
    tones = {"succeeded": "good", "failed": "bad", "timed_out": "warn", "interrupted": "warn", "cancelled": "mute"}
    # At the cap these are no longer the counts of a day: the tile says what they are of.
    period = f"of the last {ENDED_CAP:,}" if sum(ended.values()) >= ENDED_CAP else "last 24 h"
    for ending in ENDINGS:
        count = ended.get(ending, 0)
        tone = tones[ending] if count else "mute"
        tiles.append(Tile(ending.replace("_", " "), f"{count:,}", tone, f"state__exact={ending}", period))
    return tiles


def _tenant(row: Row) -> TenantUse:
    return TenantUse(
        pk=row["id"],
        slug=row["slug"],
        name=row["name"],
        used=row["used"],
        limit=row["limit"],
        queued=row["queued"],
        paused=row["paused_at"] is not None,
    )


def _driver(row: Row) -> DriverLine:
    silent = conf().replica_stale_seconds if row["kind"] == "replica" else conf().runner_lease_seconds
    beat = conf().heartbeat_interval_seconds if row["kind"] == "replica" else conf().runner_heartbeat_seconds
    return DriverLine(
        kind=row["kind"],
        pk=row["id"],
        name=row["name"],
        health=judge_health(row["heard_seconds_ago"], beat=beat, silent=silent, draining=row["draining"]),
        paused=row["paused"],
        heard_seconds_ago=row["heard_seconds_ago"],
        runs=row["runs"],
        slots=row["slots"],
        version=row["version"],
        how=row["how"].strip('[]"'),
    )


def _components(states: Row, permits: Row, drivers: Sequence[DriverLine], latency: float) -> list[Component]:
    drift, lapsed = permits["drift"], permits["lapsed"]
    oldest = states["oldest_queued_seconds"]
    return [
        Component("Database", "good", f"{latency * 1000:.0f} ms", f"PostgreSQL {states['server_version'].split()[0]}"),
        Component(
            "Conservation",
            "bad" if drift else "good",
            f"{drift} drifting" if drift else "exact",
            "counters = permits" if not drift else "run manage.py doctor",
        ),
        Component(
            "Permits held",
            "warn" if lapsed else "good",
            f"{permits['permits']:,}",
            f"{lapsed} lapsed" if lapsed else "",
        ),
        _fleet_health("Replicas", [d for d in drivers if d.kind == "replica"], needed=True),
        _fleet_health("Runners", [d for d in drivers if d.kind == "runner"], needed=False),
        Component("Longest wait", "wait" if oldest else "good", "nobody waits" if oldest is None else span(oldest)),
        _slots(),
    ]


def _slots() -> Component:
    """By the passes that processes report: this page asks the database alone, and never waits for Redis or Docker."""
    entitlement = read_entitlement()
    if isinstance(entitlement, Unrestricted):
        return Component("Physical slots", "mute", "no limit set")
    if isinstance(entitlement, EntitlementRefused):
        return Component("Physical slots", "bad", "refused", entitlement.message)
    processes = read_processes(entitlement)
    if not processes or processes[0].age_seconds > SILENT_SECONDS:
        return Component("Physical slots", "warn", "no pass", "no process looks through its containers")
    newest = processes[0]
    troubled = newest.error_age_seconds is not None and newest.error_age_seconds <= newest.age_seconds
    seen = f"{newest.existing} containers seen {span(newest.age_seconds)} ago"
    note = f"{newest.last_error}; {seen}" if troubled else seen
    return Component("Physical slots", "bad" if troubled else "good", f"limit {entitlement.limit}", note)


def _leadership(leases: Sequence[LeaseState], alarms: Sequence[Alarm]) -> list[Component]:
    """Who leads, for how long yet by the database's clock, and what no process can put right by itself."""
    lease = next((each for each in leases if each.role == LOOPS), None)
    if lease is None or not lease.led:
        # Between two leaders this is normal; past two leases it is an alarm of its own.
        leader = Component("Leader", "warn", "nobody", f"last term {lease.term}" if lease else "")
    else:
        leaving = ", asked to step down" if lease.step_down_at else ""
        note = f"term {lease.term}, {lease.seconds_left:.0f} s left{leaving}"
        leader = Component("Leader", "warn" if leaving else "good", lease.holder_name, note)
    return [leader, *(Component(ALARM_NAMES[alarm.code], "bad", "alarm", alarm.text) for alarm in alarms)]


def _recovery(standing: Standing) -> Component:
    """What is owed for dead replicas, and whether an outage has everyone held."""
    note = f"{standing.escalated} not decided after five attempts" if standing.escalated else ""
    if standing.held_until is not None:
        note = f"{note + '; ' if note else ''}hold in force until {standing.held_until:%H:%M:%S} UTC"
    tone = "bad" if standing.escalated else "warn" if standing.held or standing.open_debts else "good"
    return Component("Recovery", tone, f"{standing.open_debts} owed" if standing.open_debts else "nothing owed", note)


def _fleet_health(name: str, drivers: Sequence[DriverLine], *, needed: bool) -> Component:
    counted = {health: sum(d.health == health for d in drivers) for health in ("draining", "late", "silent")}
    live = sum(d.health == "live" for d in drivers)
    tone = "bad" if counted["silent"] or (needed and not drivers) else "warn" if counted["late"] else "good"
    note = ", ".join(f"{count} {health}" for health, count in counted.items() if count)
    return Component(name, tone if drivers or needed else "mute", f"{live} live" if drivers else "none", note)


def _chart(minutes: Sequence[Row]) -> list[MinuteBar]:
    """The last hour, newest minute on the right; what did not succeed stands on top of what did."""
    most = max((row["good"] + row["other"] for row in minutes), default=0)
    bars = []
    for row in minutes:
        good, other = CHART_HEIGHT * row["good"] / most, CHART_HEIGHT * row["other"] / most
        bars.append(
            MinuteBar(
                left=4 * max(MINUTES - 1 - row["minutes_ago"], 0),
                good_top=f"{CHART_HEIGHT - good:.1f}",
                good_height=f"{good:.1f}",
                other_top=f"{CHART_HEIGHT - good - other:.1f}",
                other_height=f"{other:.1f}",
            )
        )
    return bars
