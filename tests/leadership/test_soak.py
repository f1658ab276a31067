"""The long forms: five members for three minutes under every fault, and failover at the product's own numbers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest

from controlplane.embedded import EmbeddedPostgres, Home
from leadership.belief import now
from tests.leadership.counting.steps import TABLE
from tests.leadership.world import ROOT, World, beliefs, counted, overlaps, small_environment, until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

LEASE, PERIOD, SECONDS = 9.0, 1.0, 180.0
TICK = LEASE / 15
TRANSACTION = 3.0
QUEUE = 2.0
"""From enqueued to executed: the clusters' poll, and a machine that is busy with five interpreters."""

BOUND = LEASE + TRANSACTION + TICK + QUEUE
RESTART_BOUND = 20.0


@pytest.fixture
def server() -> Iterator[Any]:
    """A PostgreSQL of this test's own: it is restarted in the middle."""
    place = Path(tempfile.mkdtemp(prefix="wharfinger-soak."))
    place.chmod(0o711)
    embedded = EmbeddedPostgres(Home.open(place / "home"))
    embedded.start()
    environment = {**os.environ, "DATABASE_URL": embedded.url(), "SECRET_KEY": "x"}
    migrate = [sys.executable, "manage.py", "migrate", "--no-input", "-v", "0"]
    subprocess.run(migrate, cwd=ROOT, env=environment, check=True)
    with psycopg.connect(embedded.url()) as connection:
        connection.execute(TABLE)
    yield embedded
    embedded.stop()
    shutil.rmtree(place)


class Storm:
    """The faults, one after another, each with the wall-clock time at which it began."""

    def __init__(self, world: World, server: Any) -> None:
        self.world, self.server = world, server
        self.faults: list[tuple[str, float, float]] = []
        self.took: dict[str, list[float]] = {}

    def _note(self, name: str, bound: float, gone: float) -> None:
        self.faults.append((name, time.time(), bound))
        first = until(lambda: [x["acted"] for x in self.world.lines() if x.get("acted", 0) > gone + 0.1], name)
        self.took.setdefault(name, []).append(min(first) - gone)
        time.sleep(4)

    def kill(self) -> None:
        name = self.world.leader()
        fake = {"node-1": "+1h", "node-2": "-1h"}.get(name, "")
        self.world.kill(name)
        gone = now()
        self.world.member(name, fake=fake)
        self._note("kill", BOUND, gone)

    def pause(self) -> None:
        process = self.world.processes[self.world.leader()]
        process.send_signal(signal.SIGSTOP)
        self._note("pause", BOUND, now())
        process.send_signal(signal.SIGCONT)

    def restart_database(self) -> None:
        gone = now()
        began = time.time()
        self.server.stop()
        self.server.start()
        self._note("restart", RESTART_BOUND, gone)
        self.faults[-1] = ("restart", began, RESTART_BOUND)


@pytest.mark.rule("L1", "L2", "L3", "L6", "L7", "L11", "G5")
def test_three_minutes_of_faults_with_one_believer_at_a_time_and_no_due_time_twice(
    server: Any, tmp_path: Path
) -> None:
    environment = small_environment(
        lease=LEASE,
        COUNT_SECONDS=str(PERIOD),
        CONTROLPLANE_SWEEP_TRANSACTION_SECONDS=str(TRANSACTION),
    )
    world = World(server.url(), tmp_path, environment)
    try:
        for number in range(5):
            world.member(f"node-{number}", fake={1: "+1h", 2: "-1h"}.get(number, ""))
        for number in range(2):
            world.cluster(f"cluster-{number}", COUNT_NODE=f"node-{number}")
        until(lambda: len(counted(world.url)) > 2, "nothing ran")
        began = time.time()
        storm = Storm(world, server)
        for fault in (
            storm.kill, storm.pause, storm.kill, storm.restart_database, storm.kill, storm.pause, storm.kill,
            storm.pause, storm.kill,
        ):  # fmt: skip
            fault()
        time.sleep(max(SECONDS - (time.time() - began), 0))
        rows = counted(world.url)
    finally:
        world.end()

    spans = beliefs(world.lines())
    assert overlaps(spans) == []
    due = [row[0] for row in rows if row[2].timestamp() >= began]
    assert len(set(due)) == len(due), "a due time was executed twice"
    unexplained = [gap for gap in _gaps(due) if not _explained(gap, storm.faults)]
    figures = {
        "seconds": round(time.time() - began),
        "terms": len({s.term for s in spans}),
        "executed": len(due),
        "longest_gap": round(max(b - a for a, b in _gaps(due)), 1),
        "failover": {k: [round(v, 2) for v in values] for k, values in storm.took.items()},
    }
    print(json.dumps(figures))  # the figures of the long run
    assert unexplained == []


def _gaps(due: list[datetime]) -> list[tuple[float, float]]:
    times = sorted(d.astimezone(UTC).timestamp() for d in due)
    return [(a, b) for a, b in pairwise(times) if b - a > 1.5 * PERIOD]


def _explained(gap: tuple[float, float], faults: list[tuple[str, float, float]]) -> bool:
    """It began no earlier than just before a fault, and was over within that fault's bound."""
    return any(gap[0] >= at - 2 * PERIOD and gap[1] <= at + bound + PERIOD for _, at, bound in faults)


@pytest.mark.rule("L4", "L6")
def test_failover_at_the_products_own_numbers(make_world: Callable[..., World]) -> None:
    world = make_world(lease=30.0, CONTROLPLANE_LEADER_TICK_SECONDS="1", CONTROLPLANE_TICKER_SECONDS="0.5")
    for name in ("a", "b", "c"):
        world.member(name)
    until(lambda: sum("started" in x for x in world.lines()) == 3, "not all run")
    took: dict[str, list[float]] = {"clean": [], "killed": []}
    for how in ("clean",) * 5 + ("killed",) * 3:
        name = world.leader()
        time.sleep(2)
        gone = now()
        if how == "clean":
            world.processes[name].terminate()
            world.processes[name].wait(20)
        else:
            world.kill(name)
        first = until(lambda gone=gone: [x["acted"] for x in world.lines() if x.get("acted", 0) > gone + 0.05], how)
        took[how].append(min(first) - gone)
        world.member(name)
        time.sleep(3)
    summary = {k: {"median": round(statistics.median(v), 2), "max": round(max(v), 2)} for k, v in took.items()}
    print(json.dumps(summary))  # the figures of the benchmark table
    assert max(took["clean"]) < 2
    assert max(took["killed"]) < 30 + 1 + 1
    assert overlaps(beliefs(world.lines())) == []
