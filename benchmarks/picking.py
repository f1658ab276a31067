"""Picking the next runs: does it cost the same in a large ledger and among many tenants?

One admission of ten runs as a whole (reading, locking, writing, commit). Each fleet is a database of its own on the
same server; two are measured in turns. Half of a ledger's rows are queued, half have ended, spread evenly over the
tenants.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
from django.db import connection
from psycopg import sql

from admission.engine import Envelope, admit
from admission.services.runs import give_back
from benchmarks.report import Row, interleaved
from tests.ledger import make_driver

SLOTS = 10
CALLS = 60
BAR = 1.5

ROUND_TRIP_MS = 20.0
ROUND_TRIPS = 50
"""Single admissions measured in one turn."""

FILL = (
    # A copy brings what the parts before this one left; the ids below would meet theirs.
    "TRUNCATE admission_tenant CASCADE",
    """INSERT INTO admission_tenant (id, slug, name, weight, has_quota, pause_note)
       SELECT n, 'fill-' || n, '', 1, true, '' FROM generate_series(1, %(tenants)s) n""",
    """INSERT INTO admission_counter (scope, key, tenant_id, "limit", in_flight, backlog)
       SELECT 'tenant', n, n, CASE WHEN %(capped)s AND n %% 2 = 0 THEN 1 ELSE 100 END,
              CASE WHEN %(capped)s AND n %% 2 = 0 THEN 1 ELSE 0 END, true FROM generate_series(1, %(tenants)s) n""",
    """INSERT INTO admission_permit (holder, scope, key, weight, tenant_id, driver_name, acquired_at, renewed_at,
                                     lapse_seconds)
       SELECT 'ext:' || n, 'tenant', n, 1, n, '', now(), now(), 1800 FROM generate_series(1, %(tenants)s) n
       WHERE %(capped)s AND n %% 2 = 0""",
    """INSERT INTO admission_run (tenant_id, spec, rank_at, state, finished_at)
       SELECT 1 + n / 2 %% %(tenants)s, '{"command": ["true"]}', now() + make_interval(secs => n * 1e-3),
              CASE WHEN n %% 2 = 0 THEN 'queued' ELSE 'succeeded' END, CASE WHEN n %% 2 = 1 THEN now() END
       FROM generate_series(1, %(runs)s) n""",
    "VACUUM ANALYZE admission_run",
    "VACUUM ANALYZE admission_counter",
    "VACUUM ANALYZE admission_permit",
    "VACUUM ANALYZE admission_tenant",
)


@dataclass(frozen=True, slots=True)
class Fleet:
    """So many ledger rows and tenants; `capped`: half of them at their quota."""

    runs: int
    tenants: int
    capped: bool = False

    def __str__(self) -> str:
        capped = ", half at their cap" if self.capped else ""
        return f"{self.runs:,} rows and {self.tenants:,} tenants{capped}"


def measure(url: str, *, rounds: int, runs: int) -> list[Row]:
    """Three rows: many rows, many tenants, both with half of the tenants at their cap."""
    small = Fleet(1_000, 10)
    pairs = [
        (Fleet(runs, 10), small),
        (Fleet(runs, 10_000), Fleet(runs, 10)),
        (Fleet(runs, 10_000, capped=True), small),
    ]
    with _fleets(url, dict.fromkeys(fleet for pair in pairs for fleet in pair)) as databases:
        return [_compare(databases, large, little, rounds) for large, little in pairs]


def measure_round_trips(url: str, *, rounds: int, queued: int) -> list[Row]:
    """Two rows: the slowest in a hundred single admissions among many tenants, half at their cap; is it flat?"""
    large, little = Fleet(2 * queued, 10_000, capped=True), Fleet(2 * queued, 10)
    many: list[float] = []
    few: list[float] = []
    with _fleets(url, (large, little)) as databases:
        for number in range(rounds):
            for all_of, fleet in ((many, large), (few, little)) if number % 2 else ((few, little), (many, large)):
                all_of.extend(_admissions(databases[fleet], 1, 5 + ROUND_TRIPS))
    slowest, other = _percentile(many, 99), _percentile(few, 99)
    ratio = statistics.median(many) / statistics.median(few)
    among = f"{queued:,} queued rows and 10,000 tenants, 5,000 at their cap"
    return [
        Row(
            f"p99 of a single admission's round trip among {among}, against the bar",
            1000 * slowest / ROUND_TRIP_MS,
            "< 1",
            1000 * slowest < ROUND_TRIP_MS,
            f"{1000 * slowest:.2f} ms",
            f"{ROUND_TRIP_MS:.0f} ms",
        ),
        Row(
            f"median of the same, against {queued:,} queued rows and 10 tenants",
            ratio,
            f"≤ {BAR}",
            ratio <= BAR,
            f"{1000 * statistics.median(many):.2f} ms",
            f"{1000 * statistics.median(few):.2f} ms (p99 {1000 * other:.2f})",
        ),
    ]


def _percentile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1]


@contextmanager
def _fleets(url: str, fleets: Iterable[Fleet]) -> Iterator[dict[Fleet, str]]:
    """A database for each of these fleets, filled; all dropped in the end."""
    databases: dict[Fleet, str] = {}
    base = connection.settings_dict["NAME"]
    connection.close()
    try:
        for fleet in fleets:
            databases[fleet] = f"{base}_{len(databases)}"
            _create(url, base, databases[fleet])
            _fill(databases[fleet], fleet)
        yield databases
    finally:
        connection.close()
        connection.settings_dict["NAME"] = base
        for name in databases.values():
            _administer(url, sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def _create(url: str, base: str, name: str) -> None:
    _administer(
        url.rpartition("/")[0] + "/postgres",
        sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(base)),
    )


def _administer(url: str, statement: sql.Composable) -> None:
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(statement)


def _fill(name: str, fleet: Fleet) -> None:
    _use(name)
    given = {"tenants": fleet.tenants, "runs": fleet.runs, "capped": fleet.capped}
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = 0")
        for statement in FILL:
            cursor.execute(statement, given if "%(" in statement else None)
    make_driver()


def _use(name: str) -> None:
    connection.close()
    connection.settings_dict["NAME"] = name


def _compare(databases: dict[Fleet, str], large: Fleet, little: Fleet, rounds: int) -> Row:
    many, few = interleaved(
        rounds, lambda: _seconds_per_admission(databases[large]), lambda: _seconds_per_admission(databases[little])
    )
    ratios = sorted(a / b for a, b in zip(many, few, strict=True))
    ratio = statistics.median(ratios)
    return Row(
        f"admission of {SLOTS} runs among {large}, against {little}",
        ratio,
        f"≤ {BAR}",
        ratio <= BAR,
        f"{1000 * statistics.median(many):.2f} ms",
        f"{1000 * statistics.median(few):.2f} ms",
        f"{ratios[0]:.2f}-{ratios[-1]:.2f}",
    )


def _seconds_per_admission(name: str) -> float:
    """The median over some calls."""
    return statistics.median(_admissions(name, SLOTS, CALLS))


def _admissions(name: str, slots: int, calls: int) -> list[float]:
    """The seconds of each but the first, which warm up; what was admitted goes back unmeasured."""
    _use(name)
    driver = make_driver()
    spent = []
    for _ in range(calls):
        began = time.perf_counter()
        admitted = admit(driver, Envelope(slots))
        spent.append(time.perf_counter() - began)
        assert len(admitted) == slots
        give_back(driver, [(a.run, a.epoch) for a in admitted], "benchmark", drained=True)
    return spent[5:]
