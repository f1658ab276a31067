"""Two callers in the same instant, each with a connection of its own; and processes that are killed in the midst."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from admission.physical.protocol import PhysicalSlots, new_token
from admission.physical.results import Acquired, FencedOwn, Freed, Reason, Renewed
from tests.physical.world import World, container_id

T = TypeVar("T")
ROUNDS = 40


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """The answers of all calls, made by threads that leave one barrier together."""
    barrier = threading.Barrier(len(calls))
    answers: dict[int, Any] = {}

    def one(number: int, call: Callable[[], Any]) -> None:
        barrier.wait()
        answers[number] = call()

    threads = [threading.Thread(target=one, args=(i, call)) for i, call in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == len(calls), "a call raised"
    return [answers[i] for i in range(len(calls))]


def processes(world: World, count: int) -> list[PhysicalSlots]:
    made = [world.process() for _ in range(count)]
    for slots in made:
        slots.ensure_verified()
    return made


def clear(slots: PhysicalSlots, world: World) -> None:
    for holder in slots.read().holders:
        world.expire(holder.token)
    for found in slots.fence_expired().holders:
        assert slots.free(found.token, found.container_id).outcome is Freed.FREED


@pytest.mark.rule("P1")
@pytest.mark.parametrize("limit", [2, 6, 12])
def test_one_more_than_the_limit_never_gets_in(make_world: Callable[..., World], limit: int) -> None:
    world = make_world(limit=limit)
    slots = processes(world, limit + 2)
    for _ in range(ROUNDS // 4):
        answers = at_once(*[lambda s=s: s.acquire(new_token(), "a") for s in slots])
        assert sorted(a.outcome for a in answers) == [Acquired.GRANTED] * limit + [Acquired.WAIT] * 2
        assert len(slots[0].read().holders) == limit
        clear(slots[0], world)


@pytest.mark.rule("P6")
def test_a_register_and_a_fence_in_one_instant_agree(world: World) -> None:
    launcher, recoverer = processes(world, 2)
    for _ in range(ROUNDS):
        token, container = new_token(), container_id()
        launcher.acquire(token, "a")
        world.expire(token, microseconds=1500)
        registered, fenced = at_once(
            lambda t=token, c=container: launcher.register(t, "a", c), lambda t=token: recover_until(recoverer, t)
        )
        assert fenced.container_id == (container if registered.ok else None)
        assert registered.ok or registered.reason in (Reason.FENCED, Reason.EXPIRED)
        assert recoverer.free(token, fenced.container_id).outcome is Freed.FREED


def recover_until(slots: PhysicalSlots, token: str) -> Any:
    while True:
        for found in slots.fence_expired().holders:
            if found.token == token:
                return found


@pytest.mark.rule("P8")
def test_an_adoption_and_a_recovery_in_one_instant_exclude_each_other(world: World) -> None:
    adopter, recoverer = processes(world, 2)
    adopted = 0
    for number in range(ROUNDS):
        token = new_token()
        adopter.acquire(token, "old")
        adopter.register(token, "old", container_id())
        world.expire(token, microseconds=200 * number)
        adoption, recovery = at_once(lambda t=token: adopter.adopt(t, "old", "new"), recoverer.fence_expired)
        fenced = [h for h in recovery.holders if h.token == token]
        assert not (adoption.ok and fenced)
        adopted += adoption.ok
        clear(adopter, world)
    assert adopted, "no adoption ever came first: the race was not run"


@pytest.mark.rule("P11")
def test_no_slot_of_an_old_generation_is_granted_behind_an_installation(make_world: Callable[..., World]) -> None:
    world = make_world(limit=6)
    for generation in range(1, ROUNDS // 2):
        old = [world.process(generation=generation - 1) for _ in range(2)]
        new = world.process(generation=generation)
        for slots in (*old, new):
            slots.ensure_verified()
        first, second, _ = at_once(
            lambda s=old[0]: s.acquire(new_token(), "o"), lambda s=old[1]: s.acquire(new_token(), "o"), new.install
        )
        holders = new.read().holders
        assert len(holders) == first.ok + second.ok
        assert {h.state.value for h in holders} <= {"fenced"}
        assert new.acquire(new_token(), "n").ok == (not holders)
        clear(new, world)


@pytest.mark.rule("P8")
def test_two_that_recover_the_same_holder_free_it_once(world: World) -> None:
    first, second = processes(world, 2)
    for _ in range(ROUNDS):
        token = new_token()
        first.acquire(token, "a")
        world.expire(token)
        found = at_once(first.fence_expired, second.fence_expired)
        assert [h.token for answer in found for h in answer.holders] == [token, token]
        freed = at_once(lambda t=token: first.free(t, None), lambda t=token: second.free(t, None))
        assert sorted(f.outcome for f in freed) == [Freed.ABSENT, Freed.FREED]


@pytest.mark.rule("P5")
def test_one_token_claimed_twice_at_once_is_one_entry(world: World) -> None:
    first, second = processes(world, 2)
    for _ in range(ROUNDS):
        token = new_token()
        answers = at_once(lambda t=token: first.acquire(t, "a"), lambda t=token: second.acquire(t, "a"))
        assert sorted(a.outcome for a in answers) == [Acquired.GRANTED, Acquired.HELD]
        assert len(first.read().holders) == 1
        assert first.fence_own(token, "a").outcome is FencedOwn.FENCED
        first.free(token, None)


@pytest.mark.rule("P8")
def test_a_renewal_and_a_release_in_one_instant_leave_it_released(world: World) -> None:
    first, second = processes(world, 2)
    for _ in range(ROUNDS):
        token = new_token()
        first.acquire(token, "a")
        renewed, fenced = at_once(lambda t=token: first.renew(t, "a"), lambda t=token: second.fence_own(t, "a"))
        assert renewed.outcome in (Renewed.RENEWED, Renewed.FENCED)
        assert fenced.outcome is FencedOwn.FENCED
        assert world.state(token) == "fenced"
        second.free(token, None)


CLIENT = """
import sys, time
from pathlib import Path
from admission.physical.entitlement import Entitlement
from admission.physical.outside import Verified
from admission.physical.protocol import PhysicalSlots, new_token
from admission.physical.redis_adapter import RedisServer
from tests.physical.world import DirectoryRecord, container_id

url, instance, place, limit, owner = sys.argv[1:]
slots = PhysicalSlots(RedisServer(url), Entitlement(instance, int(limit), 0, True), DirectoryRecord(Path(place)),
                      lambda view: Verified(clean=True))
while True:
    token = new_token()
    if slots.acquire(token, owner).ok:
        if slots.register(token, owner, container_id()).ok:
            # Held for longer than the exchange takes, or two processors could never hold twelve at once.
            time.sleep(0.02)
            slots.renew(token, owner)
        slots.free(token, slots.fence_own(token, owner).container_id)
"""


@pytest.mark.rule("P1")
def test_processes_that_are_killed_in_the_midst_never_exceed_the_limit(make_world: Callable[..., World]) -> None:
    _storm(make_world(limit=3), kills=3)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.rule("P1")
def test_processes_that_are_killed_in_the_midst_never_exceed_the_limit_for_long(
    make_world: Callable[..., World],
) -> None:
    _storm(make_world(limit=12), kills=200)


def _storm(world: World, kills: int) -> None:
    """Clients are killed and begun again; what the dead held expires at once and is recovered meanwhile."""
    observer = world.process()
    observer.ensure_verified()
    clients = [_client(world, f"client-{i}") for i in range(world.limit + 2)]
    try:
        for number in range(kills):
            _watch(observer, world, seconds=0.3)
            dead = clients.pop(0)
            dead.kill()
            dead.wait()
            for holder in observer.read().holders:
                if holder.owner == f"client-{number}":
                    world.expire(holder.token)
            clients.append(_client(world, f"client-{number + world.limit + 2}"))
            for found in observer.fence_expired().holders:
                if found.owner == f"client-{number}":
                    assert observer.free(found.token, found.container_id).outcome is Freed.FREED
    finally:
        for client in clients:
            client.kill()
            client.wait()
    clear(observer, world)
    assert observer.read().holders == ()


def _watch(observer: PhysicalSlots, world: World, seconds: float) -> None:
    """So many holders as the limit allows are seen, and never more."""
    most, until, deadline = 0, time.monotonic() + seconds, time.monotonic() + 60
    while time.monotonic() < until or most < world.limit:
        assert time.monotonic() < deadline, f"at most {most} were ever held"
        most = max(most, len(observer.read().holders))
        assert most <= world.limit


def _client(world: World, owner: str) -> subprocess.Popen[bytes]:
    place = str(world.record._place)
    arguments = [world.server.url, world.instance_id, place, str(world.limit), owner]
    return subprocess.Popen([sys.executable, "-c", CLIENT, *arguments])
