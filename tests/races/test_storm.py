"""Drivers killed by -9, sessions killed, the database crashed again and again: no limit is passed, nothing is lost."""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.leadership.pooler import logins, pgbouncer
from tests.own_server import OwnServer, own_server
from tests.races.attack import OBSERVE, POOLED, forkserver
from tests.races.storm import APPLICATION, LAPSE, RENEW, Flag, Orders, drive, fill, keep_house

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.xdist_group("attack")]

TENANTS, DRIVERS, POOL = 50, 4, 8
SECONDS = float(os.environ.get("WHARFINGER_STORM_SECONDS", "120"))

HIGHEST = """
SELECT coalesce(max(highest), 0) FROM (
    SELECT sum(sum(change)) OVER (PARTITION BY tenant_id ORDER BY at, sum(change)) - limit_ AS highest FROM (
        SELECT a.tenant_id, c."limit" AS limit_, t.at, a.weight * t.sign AS change
        FROM admission_attempt a JOIN admission_counter c ON c.scope = 'tenant' AND c.tenant_id = a.tenant_id
        CROSS JOIN LATERAL (VALUES (a.admitted_at, 1), (a.released_at, -1)) t(at, sign)) moves
    GROUP BY tenant_id, limit_, at) h
"""
"""By how much any tenant ever stood above its limit, from the exact times of all attempts; at most 0."""

OPEN = "SELECT count(*) FROM admission_run WHERE state IN ('queued', 'admitted', 'running')"
LEFT = "SELECT (SELECT count(*) FROM admission_permit) + (SELECT sum(in_flight) FROM admission_counter)"


@dataclass(slots=True)
class Seen:
    samples: int = 0
    unseen: int = 0
    violations: int = 0
    most_held: int = 0
    killed: int = 0
    sessions_killed: int = 0
    restarts: int = 0
    runs: int = 0
    drained_after: float = 0
    """Seconds from the last fault until every run had ended."""
    clean_after: float = 0
    """Seconds from there until nothing was held any more."""


class Storm:
    """The processes, the faults, and the observer between them. `url`: how the processes reach the server."""

    def __init__(self, server: OwnServer, url: str) -> None:
        context = forkserver("tests.races.storm")
        self.context: Any = context
        self.server, self.seen = server, Seen()
        self.orders = Orders(url, Flag(context), Flag(context))
        self.dice = random.Random()  # noqa: S311 - picks victims
        self.drivers: list[Any] = []
        self.keeper: Any = None
        self.observer: psycopg.Connection[Any] | None = None

    def start(self, runs: int) -> None:
        filling = self._process(fill, TENANTS, runs)
        filling.join(120)
        assert filling.exitcode == 0
        self.seen.runs = TENANTS * runs
        self.drivers = [self._process(drive) for _ in range(DRIVERS)]
        self.keeper = self._process(keep_house)

    def _process(self, target: Any, *more: int) -> Any:
        process = self.context.Process(target=target, args=(self.orders, *more), daemon=True)
        process.start()
        return process

    def end(self) -> None:
        self.orders.stop.set()
        for process in (*self.drivers, self.keeper):
            if process is not None:
                process.join(10)
                process.kill()
                process.join()
        if self.observer is not None:
            self.observer.close()

    def ask(self, statement: str) -> Any:
        """One look, by a connection that is made anew after an outage; None while there is none."""
        try:
            if self.observer is None or self.observer.closed:
                self.observer = psycopg.connect(self.server.url, autocommit=True, connect_timeout=5)
            return self.observer.execute(statement.encode()).fetchone()
        except psycopg.OperationalError:
            self.observer = None
            return None

    def look(self) -> None:
        row = self.ask(OBSERVE)
        if row is None:
            self.seen.unseen += 1
            return
        self.seen.samples += 1
        self.seen.violations += row[0] + row[1] + row[2]
        self.seen.most_held = max(self.seen.most_held, row[3])

    def rage(self, seconds: float, restarts: int) -> None:
        """So long, with so many crashes of the database evenly spread, the first one third into the first part."""
        began = time.monotonic()
        crashes = [seconds * (n + 1) / (restarts + 1) for n in range(restarts)]
        next_fault = 0.5
        while (passed := time.monotonic() - began) < seconds:
            self.look()
            if crashes and passed >= crashes[0]:
                crashes.pop(0)
                self.server.crash_and_start()
                self.seen.restarts += 1
            elif passed >= next_fault:
                next_fault = passed + self.dice.uniform(0.2, 0.8)
                self.dice.choice((self.kill_a_driver, self.kill_a_session, self.kill_a_session))()
            time.sleep(0.02)

    def kill_a_driver(self) -> None:
        place = self.dice.randrange(DRIVERS)
        self.drivers[place].kill()
        self.drivers[place].join()
        self.drivers[place] = self._process(drive)
        self.seen.killed += 1

    def kill_a_session(self) -> None:
        row = self.ask(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '{APPLICATION}'"  # noqa: S608
            " ORDER BY random() LIMIT 1"
        )
        self.seen.sessions_killed += row is not None

    def until_zero(self, statement: str, seconds: float) -> float:
        began = time.monotonic()
        while self.ask(statement) != (0,):
            self.look()
            assert time.monotonic() - began < seconds, (statement, self.ask(statement), self.seen)
            time.sleep(0.05)
        return time.monotonic() - began


@pytest.fixture
def storm(tmp_path: Path) -> Iterator[Storm]:
    with own_server() as server, _reached(server, tmp_path) as url:
        made = Storm(server, url)
        try:
            yield made
        finally:
            made.end()


@contextlib.contextmanager
def _reached(server: OwnServer, folder: Path) -> Iterator[str]:
    """Where these tests run behind a pooler (tests/pooler), this server of their own has one too."""
    if not POOLED:
        yield server.url
        return
    with pgbouncer(server.url, folder, POOL) as pooled:
        yield pooled
    assert logins(folder) > DRIVERS, "the drivers did not come through the pooler"


def withstand(storm: Storm, seconds: float, *, restarts: int, runs: int) -> None:
    storm.start(runs)
    storm.rage(seconds, restarts)
    seen = storm.seen
    storm.orders.no_more.set()
    seen.drained_after = round(storm.until_zero(OPEN, 300), 1)
    seen.clean_after = round(storm.until_zero(LEFT, LAPSE + 3 * RENEW + 5), 1)
    print(json.dumps(asdict(seen)))  # the figures of the run
    assert seen.violations == 0
    assert seen.samples > 4 * seconds
    assert seen.restarts == restarts
    assert min(seen.killed, seen.sessions_killed, seen.most_held) > 0
    assert storm.ask(HIGHEST)[0] <= 0, "the history tells of a passed limit"
    assert storm.ask("SELECT count(*) FROM admission_attempt WHERE released_at IS NULL") == (0,)


@pytest.mark.rule("A4", "A5", "A11", "A12", "A30", "G1", "G8")
def test_fifty_tenants_keep_their_limits_through_kills_and_a_crash_of_the_database(storm: Storm) -> None:
    withstand(storm, 15, restarts=1, runs=30)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.rule("A4", "A5", "A11", "A12", "A30", "G1", "G8")
def test_two_minutes_of_kills_and_crashes_leave_every_limit_kept_and_every_run_ended(storm: Storm) -> None:
    withstand(storm, SECONDS, restarts=max(2, int(SECONDS // 20)), runs=160)
