"""Processes that compete for the lease: killed, stopped, with a shifted clock, forked. Scaled to a lease of 1.5 s."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Callable

import pytest

from controlplane.core.identity import current_process
from leadership.belief import now
from leadership.models import Term
from recovery.models import Replica
from recovery.replica.process import ReplicaProcess
from tests import ledger
from tests.leadership.world import SMALL, World, beliefs, overlaps, until

LEASE, TICK = SMALL["lease"], SMALL["tick"]
LOAD = 1.0
"""What a machine that runs other things may add to a bound."""


def successor(world: World, after: float) -> float:
    """When another first acted as leader after `after`."""
    found = until(lambda: [x["acted"] for x in world.lines() if x.get("acted", 0) > after], "nobody leads")
    return float(min(found))


def assert_one_believer_at_a_time(world: World) -> None:
    spans = beliefs(world.lines())
    assert spans
    assert overlaps(spans) == []


@pytest.mark.rule("L1", "L2", "L3", "L4", "G5")
def test_killed_stopped_and_with_a_shifted_clock_no_two_believe_at_one_time(make_world: Callable[..., World]) -> None:
    world = make_world()
    for name, shift in (("a", ""), ("b", "+1h"), ("c", "-1h")):
        world.member(name, fake=shift)
    for _ in range(2):
        name = world.leader()
        world.kill(name)
        world.member(name)
        gone = now()
        assert successor(world, gone) - gone < LEASE + TICK + LOAD
    stopped = world.processes[world.leader()]
    stopped.send_signal(signal.SIGSTOP)
    gone = now()
    successor(world, gone + 0.1)
    stopped.send_signal(signal.SIGCONT)
    time.sleep(LEASE)
    assert_one_believer_at_a_time(world)


def test_the_checker_sees_two_that_believe_at_one_time() -> None:
    """The red variant of the check."""
    lines = [
        {"name": "a", "pid": 1, "term": 1, "from": 0.0, "until": 2.0},
        {"name": "b", "pid": 2, "term": 2, "from": 1.9, "until": 4.0},
        {"name": "a", "pid": 1, "term": 3, "from": 4.1, "until": 6.0},
    ]
    assert [(a.term, b.term) for a, b in overlaps(beliefs(lines))] == [(1, 2)]
    acted_late = [*lines[::2], {"name": "a", "pid": 1, "term": 1, "acted": 4.5}]
    assert [(a.term, b.term) for a, b in overlaps(beliefs(acted_late))] == [(1, 3)]


@pytest.mark.rule("L4")
def test_a_clean_stop_hands_the_lease_back_and_the_next_leads_within_two_seconds(
    make_world: Callable[..., World],
) -> None:
    world = make_world(lease=30.0, CONTROLPLANE_LEADER_TICK_SECONDS="1")  # the product's own numbers
    for name in ("a", "b"):
        world.member(name)
    first = world.leader()
    until(lambda: sum("started" in x for x in world.lines()) == 2, "not both run")
    time.sleep(1)
    world.processes[first].terminate()
    asked = now()
    assert successor(world, asked + 0.05) - asked < 2
    assert_one_believer_at_a_time(world)
    assert Term.objects.get(term=1).ended_because == "resigned"


@pytest.mark.rule("L10")
def test_a_forked_child_does_not_lead_and_does_not_hand_back_its_parents_lease(
    make_world: Callable[..., World],
) -> None:
    world = make_world()
    process = world.member("a")
    world.leader()
    process.send_signal(signal.SIGUSR1)
    line = until(lambda: [x for x in world.lines() if "child_term" in x], "the child said nothing")[0]
    assert line["child_term"] is None
    assert line["pid"] != process.pid
    asked = now()
    assert successor(world, asked) - asked < 0.5, "the parent leads on"
    assert Term.objects.count() == 1


@pytest.mark.rule("L10")
def test_a_forked_child_does_not_beat(transactional_db: None) -> None:
    replica = ledger.make_replica()
    process = ReplicaProcess.__new__(ReplicaProcess)
    process._identity, process._replica = current_process(), replica
    before = Replica.objects.get(pk=replica.pk).beat_at
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child touches no lock of another thread
        child = os.fork()
    if not child:
        try:
            process._beat()  # had it gone on, there would be no driver to ask here
        except AttributeError:
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert Replica.objects.get(pk=replica.pk).beat_at == before
    with pytest.raises(AttributeError):
        process._beat()  # the parent does ask
