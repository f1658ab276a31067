"""A leader that is stopped in the middle and replaced writes nothing afterwards (rule L6), with real processes."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from leadership.belief import now
from leadership.election import LeaderElector
from leadership.models import Fire
from tests.leadership.world import World, counted, until

pytestmark = pytest.mark.usefixtures("counting")

TRANSACTION_SECONDS = 1.0
STOPPED = "T"


def lead(name: str) -> LeaderElector:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE leadership_lease SET expires_at = clock_timestamp() - interval '1 ms'")
    elector = LeaderElector(name, name)
    elector.tick()
    assert elector.term() is not None
    return elector


def send_fire(term: int) -> Fire:
    with connection.cursor() as cursor:
        cursor.execute("SELECT date_trunc('second', clock_timestamp())")
        at = cursor.fetchone()[0]
    return Fire.objects.create(loop="count", fire_at=at, term=term, enqueued_at=at)


def sweep(world: World, fire: Fire, mark: Path, where: str, **extra: str) -> subprocess.Popen[bytes]:
    """A process that executes the fire and is stopped by SIGSTOP `where`; returns once it is."""
    argv = ["-m", "tests.leadership.sweeper", "count", fire.fire_at.isoformat(), str(fire.term)]
    extra |= {"COUNT_MARK": str(mark), where: "1", "LOG_LEVEL": "WARNING"}
    process = world._start("sweeper", argv, extra)
    until(mark.exists, f"the sweep never began: {world.log('sweeper')}")
    until(lambda: state(process) == STOPPED, "it was not stopped")
    return process


def state(process: subprocess.Popen[bytes]) -> str:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def resume(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGCONT)
    process.wait(30)


@pytest.mark.rule("L6", "L5")
def test_stopped_before_its_writing_transaction_and_replaced_it_changes_nothing(
    make_world: Callable[..., World], tmp_path: Path
) -> None:
    world = make_world()
    lead("a")
    process = sweep(world, send_fire(1), tmp_path / "mark", "COUNT_BEFORE")

    began = now()
    lead("b")
    assert now() - began < 1, "nothing is locked: the takeover does not wait"
    resume(process)

    assert counted(world.url) == []
    assert Fire.objects.get().state == "undone"
    assert "superseded" in world.log("sweeper")


@pytest.mark.rule("L6")
def test_without_the_proof_of_the_term_the_same_sweep_writes_after_it_was_replaced(
    make_world: Callable[..., World], tmp_path: Path
) -> None:
    """The red variant: it shows that the test above can fail."""
    world = make_world()
    lead("a")
    process = sweep(world, send_fire(1), tmp_path / "mark", "COUNT_BEFORE", COUNT_UNPROVED="1")
    lead("b")
    resume(process)
    assert [row[1] for row in counted(world.url)] == [1], "a write under term 1, while term 2 is in force"


@pytest.mark.rule("L6")
def test_stopped_inside_its_transaction_it_holds_the_takeover_no_longer_than_the_bound_and_nothing_commits(
    make_world: Callable[..., World], tmp_path: Path
) -> None:
    world = make_world(CONTROLPLANE_SWEEP_TRANSACTION_SECONDS=str(TRANSACTION_SECONDS))
    lead("a")
    process = sweep(world, send_fire(1), tmp_path / "mark", "COUNT_INSIDE")

    began = now()
    elector = lead("b")
    waited = now() - began

    assert elector.term() == 2
    assert waited < TRANSACTION_SECONDS + 1, f"the takeover waited {waited:.2f} s"
    resume(process)
    assert counted(world.url) == []
    assert "done" not in world.log("sweeper").split()


@pytest.mark.rule("L6")
def test_without_a_bound_on_the_transaction_the_takeover_waits_for_as_long_as_it_is_stopped(
    make_world: Callable[..., World], tmp_path: Path, connect: Callable[..., Any]
) -> None:
    """The red variant of the bound."""
    world = make_world(CONTROLPLANE_SWEEP_TRANSACTION_SECONDS="600")
    lead("a")
    sweep(world, send_fire(1), tmp_path / "mark", "COUNT_INSIDE")
    waiter = connect(autocommit=True)
    waiter.execute("SET statement_timeout = '2s'")
    with pytest.raises(Exception, match="statement timeout"):
        waiter.execute("UPDATE leadership_lease SET term = term + 1")
