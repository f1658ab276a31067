"""Waiting for a slot: bounded by the caller's deadline, woken by a release, visible while it lasts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from admission.physical.protocol import PhysicalSlots, new_token
from admission.physical.results import Acquired, Freed
from admission.physical.waiting import Wait, Waiter, now
from tests.physical.server import OwnRedis
from tests.physical.world import World, container_id


def waiter(slots: PhysicalSlots, *, recover: Callable[[], None] = lambda: None, cancelled: object = None) -> Waiter:
    gone = cancelled if isinstance(cancelled, threading.Event) else threading.Event()
    return Waiter(slots, new_token(), "a", run="3/1", recover=recover, cancelled=gone.is_set)


def in_thread(call: Callable[[], Wait]) -> tuple[threading.Thread, list[Wait]]:
    answers: list[Wait] = []
    thread = threading.Thread(target=lambda: answers.append(call()))
    thread.start()
    return thread, answers


def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came so far"
        time.sleep(0.01)


@pytest.mark.rule("P13")
def test_the_deadline_bounds_the_wait_and_the_waiter_leaves(make_world: Callable[..., World]) -> None:
    slots = make_world(limit=1).process()
    assert slots.acquire(new_token(), "a").ok
    began = now()
    wait = waiter(slots).until(began + 1.2)
    assert not wait.ok
    assert wait.acquired is not None
    assert wait.acquired.outcome is Acquired.WAIT
    assert 1.2 <= now() - began < 2.0
    assert slots.read().counts.waiting == 0


@pytest.mark.rule("P15")
def test_a_release_of_the_same_process_wakes_the_waiter_at_once(make_world: Callable[..., World]) -> None:
    slots = make_world(limit=1).process()
    token = new_token()
    assert slots.acquire(token, "a").ok
    thread, answers = in_thread(lambda: waiter(slots).until(now() + 30))
    until(lambda: slots.read().counts.waiting == 1)
    (seen,) = slots.read().waiting
    assert (seen.run, seen.owner) == ("3/1", "a")
    # Not admitted while it is full, over several of its polls.
    polls = time.monotonic() + 1.5
    while time.monotonic() < polls:
        assert slots.read().tokens == {token}
        time.sleep(0.05)
    slots.fence_own(token, "a")
    freed = time.monotonic()
    slots.free(token, None)
    thread.join()
    assert answers[0].ok
    assert time.monotonic() - freed < 0.2


def test_a_release_of_another_process_is_seen_by_the_next_poll(make_world: Callable[..., World]) -> None:
    world = make_world(limit=1)
    slots, other = world.process(), world.process()
    token = new_token()
    assert other.acquire(token, "b").ok
    thread, answers = in_thread(lambda: waiter(slots).until(now() + 30))
    until(lambda: other.read().counts.waiting == 1)
    other.fence_own(token, "b")
    other.free(token, None)
    freed = time.monotonic()
    thread.join()
    assert answers[0].ok
    assert time.monotonic() - freed < 1.5


@pytest.mark.rule("P10")
def test_a_waiter_recovers_the_dead(make_world: Callable[..., World]) -> None:
    world = make_world(limit=1)
    slots = world.process()
    dead = new_token()
    assert slots.acquire(dead, "dead").ok
    slots.register(dead, "dead", container_id())
    world.expire(dead)

    def recover() -> None:
        for found in slots.fence_expired().holders:
            assert slots.free(found.token, found.container_id).outcome is Freed.FREED

    assert waiter(slots, recover=recover).until(now() + 10).ok


@pytest.mark.rule("P11")
def test_the_first_execution_of_a_new_generation_installs_it(make_world: Callable[..., World]) -> None:
    world = make_world(limit=2)
    old, new = world.process(), world.process(limit=6, generation=1)
    held = new_token()
    assert old.acquire(held, "a").ok

    def recover() -> None:
        for found in new.fence_expired().holders:
            new.free(found.token, found.container_id)

    assert waiter(new, recover=recover).until(now() + 10).ok
    superseded = waiter(old).until(now() + 10)
    assert superseded.acquired is not None
    assert superseded.acquired.outcome is Acquired.SUPERSEDED
    assert superseded.waited_seconds < 1


@pytest.mark.rule("P15")
def test_who_waits_for_the_gate_is_waiting_too(make_world: Callable[..., World]) -> None:
    world = make_world(limit=1)
    world.shelf.containers["left"] = container_id()
    world.shelf.stuck.add("left")
    slots = world.process()
    thread, answers = in_thread(lambda: waiter(slots).until(now() + 30))
    until(lambda: slots.read().counts.waiting == 1)
    assert slots.read().holders == ()
    world.shelf.stuck.clear()
    thread.join()
    assert answers[0].ok
    assert slots.read().counts.waiting == 0


def test_a_cancelled_wait_ends_without_another_ask(make_world: Callable[..., World]) -> None:
    slots = make_world(limit=1).process()
    assert slots.acquire(new_token(), "a").ok
    cancelled = threading.Event()
    thread, answers = in_thread(lambda: waiter(slots, cancelled=cancelled).until(now() + 30))
    until(lambda: slots.read().counts.waiting == 1)
    cancelled.set()
    thread.join(timeout=5)
    assert not answers[0].ok
    assert slots.read().counts.waiting == 0


@pytest.mark.rule("P10")
def test_an_outage_is_waited_through_and_never_taken_for_a_slot(
    make_world: Callable[..., World], start_server: Callable[..., OwnRedis]
) -> None:
    own = start_server()
    world = make_world(own, limit=1)
    slots = world.process()
    held = new_token()
    assert slots.acquire(held, "a").ok
    own.kill()
    wait = waiter(slots).until(now() + 1.5)
    assert not wait.ok
    assert "cannot be reached" in wait.error
    thread, answers = in_thread(lambda: waiter(slots).until(now() + 30))
    own.start()
    until(lambda: slots.read().counts.waiting == 1)
    slots.fence_own(held, "a")
    slots.free(held, None)
    thread.join()
    assert answers[0].ok
