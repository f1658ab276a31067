"""The long forms: five members for three minutes under every fault, and failover at the product's own numbers."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from controlplane.embedded import EmbeddedPostgres, Home
from leadership.belief import now
from tests.leadership.counting.steps import TABLE
from tests.leadership.replicas import Fleet
from tests.leadership.storm import Storm, gaps, unexplained
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


@pytest.mark.rule("L1", "L2", "L3", "L6", "L7", "L11", "G5")
@pytest.mark.parametrize("kind", [World, Fleet], ids=["members", "replicas"])
def test_three_minutes_of_faults_with_one_believer_at_a_time_and_no_due_time_twice(
    server: Any, tmp_path: Path, kind: type[World]
) -> None:
    """As bare competitors, which write down each moment they would act in, and as whole replica processes."""
    environment = small_environment(
        lease=LEASE,
        COUNT_SECONDS=str(PERIOD),
        CONTROLPLANE_SWEEP_TRANSACTION_SECONDS=str(TRANSACTION),
    )
    world = kind(server.url(), tmp_path, environment)
    begin = world.replica if isinstance(world, Fleet) else world.member
    try:
        for number in range(5):
            begin(f"node-{number}", fake={1: "+1h", 2: "-1h"}.get(number, ""))
        for number in range(2):
            world.cluster(f"cluster-{number}", COUNT_NODE=f"node-{number}")
        until(lambda: len(counted(world.url)) > 2, "nothing ran")
        began = time.time()
        storm = Storm(world, bound=BOUND, restart_bound=RESTART_BOUND)
        for fault in (
            storm.kill, storm.pause, storm.kill, lambda: storm.restart_database(server), storm.kill, storm.pause,
            storm.kill, storm.pause, storm.kill,
        ):  # fmt: skip
            fault()
        time.sleep(max(SECONDS - (time.time() - began), 0))
        rows = counted(world.url)
    finally:
        world.end()

    spans = beliefs(world.lines())
    due = [row[0] for row in rows if row[2].timestamp() >= began]
    figures = {
        "kind": kind.__name__,
        "seconds": round(time.time() - began),
        "terms": len({s.term for s in spans}),
        "executed": len(due),
        "longest_gap": round(max(b - a for a, b in gaps(due, PERIOD)), 1),
        "failover": {k: [round(v, 2) for v in values] for k, values in storm.took.items()},
    }
    print(json.dumps(figures))  # the figures of the long run
    assert overlaps(spans) == []
    assert len(set(due)) == len(due), "a due time was executed twice"
    assert unexplained(gaps(due, PERIOD), storm.faults, PERIOD) == []


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
