"""Each script's row of the table: precondition, effect, refusal; repeated, and executed late."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from admission.physical.errors import PhysicalError, Refused, Unavailable
from admission.physical.protocol import PhysicalSlots, new_token
from admission.physical.results import Acquired, FencedOwn, Freed, HolderState, Installed, Reason, Renewed
from admission.physical.scripts import DIRECTORY, NAMES
from tests.physical.world import World, container_id


def take(slots: PhysicalSlots, owner: str = "a", run: str = "") -> str:
    token = new_token()
    assert slots.acquire(token, owner, run).outcome is Acquired.GRANTED
    return token


def start(slots: PhysicalSlots, owner: str = "a") -> tuple[str, str]:
    token, container = take(slots, owner), container_id()
    assert slots.register(token, owner, container).ok
    return token, container


@pytest.mark.rule("P1")
@pytest.mark.rule("P6")
def test_the_limit_counts_entries_of_every_state(world: World) -> None:
    slots = world.process()
    running, _ = start(slots)
    reserved = take(slots)
    for made in ("as they are", "one fenced", "one expired"):
        if made == "one fenced":
            slots.fence_own(running, "a")
        if made == "one expired":
            world.expire(reserved)
        answer = slots.acquire(new_token(), "a")
        assert (answer.outcome, answer.holders) == (Acquired.WAIT, 2), made
    assert answer.recoverable == 2


def test_a_grant_is_reserved_with_owner_generation_and_thirty_seconds(world: World) -> None:
    slots = world.process()
    token = take(slots, "replica-1", "12/1")
    (holder,) = slots.read().holders
    assert (holder.token, holder.owner, holder.run, holder.generation) == (token, "replica-1", "12/1", 0)
    assert holder.state is HolderState.RESERVED
    assert holder.container_id is None
    assert 29 < holder.deadline_seconds <= 30


def test_a_repeated_acquire_is_held_and_counts_once(world: World) -> None:
    slots = world.process()
    token = take(slots)
    before = world.entry(token)
    assert slots.acquire(token, "a").outcome is Acquired.HELD
    assert world.entry(token) == before
    assert slots.acquire(token, "b").reason is Reason.OWNER
    world.expire(token)
    assert slots.acquire(token, "a").reason is Reason.EXPIRED
    slots.fence_own(token, "a")
    assert slots.acquire(token, "a").reason is Reason.FENCED


@pytest.mark.rule("P6")
def test_an_acquire_that_arrives_after_its_release_is_recovered_like_a_dead_holder(world: World) -> None:
    slots = world.process(limit=1)
    token = take(slots)
    slots.fence_own(token, "a")
    assert slots.free(token, None).outcome is Freed.FREED
    assert slots.acquire(token, "a").ok
    world.expire(token)
    (found,) = slots.fence_expired().holders
    assert slots.free(found.token, found.container_id).outcome is Freed.FREED
    assert take(slots)


@pytest.mark.rule("P8")
def test_register_records_one_id_once(world: World) -> None:
    slots = world.process()
    token, container = start(slots)
    before = world.entry(token)
    assert slots.register(token, "a", container).ok
    assert world.entry(token) == before
    assert slots.register(token, "a", container_id()).reason is Reason.CONTAINER
    assert slots.register(token, "b", container).reason is Reason.OWNER
    assert slots.register(new_token(), "a", container).reason is Reason.UNKNOWN


@pytest.mark.rule("P6")
def test_what_is_fenced_or_expired_can_never_register(world: World) -> None:
    slots = world.process()
    fenced, expired = take(slots), take(slots)
    slots.fence_own(fenced, "a")
    world.expire(expired)
    assert slots.register(fenced, "a", container_id()).reason is Reason.FENCED
    assert slots.register(expired, "a", container_id()).reason is Reason.EXPIRED
    assert [h.container_id for h in slots.read().holders] == [None, None]


@pytest.mark.rule("P5")
def test_the_deadline_is_strict_and_keeps_microseconds(world: World) -> None:
    slots = world.process()
    token, _ = start(slots)
    assert slots.renew(token, "a").outcome is Renewed.RENEWED
    # 16 digits: what Lua's own concatenation would have cut to 14.
    seconds, micro = world.server.client.time()
    left = world.deadline_us(token) - (seconds * 1_000_000 + micro)
    assert 29_000_000 < left <= 30_000_000
    deadlines = set()
    for _ in range(20):
        slots.renew(token, "a")
        deadlines.add(world.deadline_us(token) % 100)
    assert len(deadlines) > 5, "the last two digits of the deadline are lost"


@pytest.mark.rule("P5", "P10")
def test_a_clock_that_was_set_back_delays_recovery_by_one_period_and_no_more(world: World) -> None:
    """What a step back by an hour leaves: deadlines and waiters an hour ahead."""
    hour = 3600 * 1_000_000
    slots = world.process(limit=2)
    alive, dead = take(slots), take(slots)
    assert slots.acquire(new_token(), "gone").outcome is Acquired.WAIT
    (waiting,) = slots.read().waiting
    client, key = world.server.client, world.keys.waiting
    since, last, *rest = str(client.hget(key, waiting.token)).split(" ")
    client.hset(key, waiting.token, " ".join([str(int(since) + hour), str(int(last) + hour), *rest]))
    for token in (alive, dead):
        world.expire(token, hour)
    before = world.entry(alive)
    assert slots.read().waiting == ()
    assert slots.fence_expired().holders == ()
    assert world.entry(alive) != before
    assert client.hlen(key) == 0
    assert all(29 < holder.deadline_seconds <= 30 for holder in slots.read().holders)
    assert slots.renew(alive, "a").outcome is Renewed.RENEWED
    world.expire(dead)
    assert [found.token for found in slots.fence_expired().holders] == [dead]


@pytest.mark.rule("P5")
def test_no_key_expires_and_all_share_one_tag(world: World) -> None:
    slots = world.process(limit=1)
    take(slots)
    slots.acquire(new_token(), "a")
    keys = world.server.client.keys(f"*{world.entitlement().instance}*")
    assert sorted(keys) == sorted(world.keys.all)
    tag = "{" + world.entitlement().instance + "}"
    assert all(key.startswith(f"wharfinger:admission:{tag}:") for key in keys)
    assert {world.server.client.ttl(key) for key in keys} == {-1}
    assert world.instance_id not in "".join(keys)


@pytest.mark.rule("P5")
@pytest.mark.parametrize("name", NAMES)
def test_each_script_has_a_header_and_touches_no_other_key(name: str) -> None:
    text = (DIRECTORY / f"{name}.lua").read_text()
    assert text.startswith("#!lua")
    assert "-- Returns {" in text
    assert "-- Invariant: " in text
    assert "KEYS" not in text.replace("KEYS[1..3]", ""), "keys are named in common.lua only"
    calls = [part.split(")")[0] for part in text.split("redis.call(")[1:]]
    assert all(call.split(", ")[1] in ("HOLDERS", "CONFIG", "WAITING") for call in calls)


@pytest.mark.rule("P8")
def test_renewal_answers_what_the_holder_has_to_do(world: World) -> None:
    slots = world.process()
    token, _ = start(slots)
    assert slots.renew(token, "a").outcome is Renewed.RENEWED
    assert slots.renew(token, "b").outcome is Renewed.DISPLACED
    assert slots.renew(new_token(), "a").outcome is Renewed.UNKNOWN
    world.expire(token)
    before = world.entry(token)
    assert slots.renew(token, "a").outcome is Renewed.EXPIRED
    assert world.entry(token) == before, "an expired holder is not revived"
    slots.fence_expired()
    assert slots.renew(token, "a").outcome is Renewed.FENCED


@pytest.mark.rule("P10")
def test_fence_expired_takes_no_living_holder_and_names_the_id_recorded_now(world: World) -> None:
    slots = world.process(limit=3)
    living, _ = start(slots)
    dead, container = start(slots, "b")
    unregistered = take(slots, "c", "7/2")
    world.expire(dead)
    world.expire(unregistered)
    found = {h.token: h for h in slots.fence_expired().holders}
    assert set(found) == {dead, unregistered}
    assert (found[dead].container_id, found[dead].owner) == (container, "b")
    assert (found[unregistered].container_id, found[unregistered].run) == (None, "7/2")
    assert world.state(living) == "running"
    assert {h.token for h in slots.fence_expired().holders} == set(found), "a repeat names them again"


@pytest.mark.rule("P8")
def test_a_release_frees_only_what_it_confirmed(world: World) -> None:
    slots = world.process()
    token, container = start(slots)
    assert slots.free(token, container).reason is Reason.STATE, "not fenced"
    answer = slots.fence_own(token, "a")
    assert (answer.outcome, answer.container_id) == (FencedOwn.FENCED, container)
    assert slots.fence_own(token, "a") == answer
    assert slots.free(token, None).reason is Reason.CONTAINER
    assert slots.free(token, container_id()).reason is Reason.CONTAINER
    assert slots.free(token, container).outcome is Freed.FREED
    assert slots.free(token, container).outcome is Freed.ABSENT
    assert slots.fence_own(token, "a").outcome is FencedOwn.UNKNOWN


@pytest.mark.rule("P8")
def test_a_stale_release_touches_nobody_else(world: World) -> None:
    slots = world.process()
    mine, container = start(slots)
    other, _ = start(slots, "b")
    slots.fence_own(mine, "a")
    slots.free(mine, container)
    before = world.entry(other)
    slots.fence_own(mine, "a")
    slots.free(mine, container)
    assert slots.fence_own(other, "a").outcome is FencedOwn.DISPLACED
    assert slots.free(other, container).outcome is Freed.CHANGED
    assert world.entry(other) == before


def test_a_free_that_arrives_late_for_another_confirmation_is_refused(world: World) -> None:
    """None was recorded when the release listed; the register of the same launcher came in before its fence."""
    slots = world.process()
    token = take(slots)
    assert slots.register(token, "a", container_id()).ok
    slots.fence_own(token, "a")
    assert slots.free(token, None).outcome is Freed.CHANGED


@pytest.mark.rule("P8")
def test_adoption_moves_a_living_running_entry_to_one_owner(world: World) -> None:
    slots = world.process()
    token, container = start(slots, "old")
    assert slots.adopt(token, "wrong", "new").reason is Reason.OWNER
    assert slots.adopt(token, "old", "new").ok
    assert slots.adopt(token, "old", "new").ok, "a repeat"
    assert slots.adopt(token, "old", "third").reason is Reason.OWNER
    (holder,) = slots.read().holders
    assert (holder.owner, holder.container_id) == ("new", container)
    assert slots.renew(token, "old").outcome is Renewed.DISPLACED
    assert slots.fence_own(token, "old").outcome is FencedOwn.DISPLACED
    assert slots.register(token, "old", container).reason is Reason.OWNER
    assert world.state(token) == "running"


@pytest.mark.rule("P8")
@pytest.mark.parametrize("state", ["reserved", "expired", "fenced", "gone"])
def test_only_running_unexpired_entries_are_adopted(world: World, state: str) -> None:
    slots = world.process()
    token = take(slots, "old")
    if state != "reserved":
        assert slots.register(token, "old", container_id()).ok
        world.expire(token)
    if state in ("fenced", "gone"):
        (found,) = slots.fence_expired().holders
        if state == "gone":
            slots.free(token, found.container_id)
    reasons = {"reserved": Reason.STATE, "expired": Reason.EXPIRED, "fenced": Reason.FENCED, "gone": Reason.UNKNOWN}
    assert slots.adopt(token, "old", "new").reason is reasons[state]


@pytest.mark.rule("P11")
def test_an_installation_fences_every_holder_in_one_step(world: World) -> None:
    old, new = world.process(limit=2), world.process(limit=6, generation=1)
    running, container = start(old)
    reserved = take(old)
    assert new.acquire(new_token(), "n").reason is Reason.NEWER
    answer = new.install()
    assert (answer.outcome, answer.fenced) == (Installed.INSTALLED, 2)
    assert new.install().outcome is Installed.SAME
    assert old.renew(running, "a").outcome is Renewed.FENCED
    assert old.register(reserved, "a", container_id()).reason is Reason.FENCED
    # Four of six are free, but nothing of the new generation begins beside what the old one left.
    for _ in range(3):
        answer_wait = new.acquire(new_token(), "n")
        assert (answer_wait.outcome, answer_wait.old_holders) == (Acquired.WAIT, 2)
    assert new.free(reserved, None).outcome is Freed.FREED
    assert new.acquire(new_token(), "n").outcome is Acquired.WAIT
    assert new.free(running, container).outcome is Freed.FREED
    assert new.acquire(new_token(), "n").ok
    assert new.read().config.limit == 6  # type: ignore[union-attr]


@pytest.mark.rule("P11")
def test_a_superseded_process_neither_admits_nor_reaps_nor_goes_back(world: World) -> None:
    old, new = world.process(limit=6, generation=1), world.process(limit=2, generation=2)
    assert old.acquire(new_token(), "o").ok
    assert new.install().outcome is Installed.INSTALLED
    (left,) = new.read().holders
    assert old.acquire(new_token(), "o").outcome is Acquired.SUPERSEDED
    assert old.fence_expired().reason is Reason.OLDER
    assert old.install().outcome is Installed.SUPERSEDED
    # A release of its own is still its right, in any generation.
    assert old.fence_own(left.token, "o").outcome is FencedOwn.FENCED
    assert old.free(left.token, None).outcome is Freed.FREED
    # Another process of the old generation, begun after the resize.
    assert world.process(limit=6, generation=1).acquire(new_token(), "o").outcome is Acquired.SUPERSEDED
    assert new.read().config.generation == 2  # type: ignore[union-attr]


@pytest.mark.rule("P11")
def test_a_changed_limit_alone_fails_closed(world: World) -> None:
    assert world.process(limit=2).acquire(new_token(), "a").ok
    for limit in (1, 6):
        with pytest.raises(Refused, match="raise CONTROLPLANE_RUN_GENERATION"):
            world.process(limit=limit).acquire(new_token(), "a")
    assert world.process(limit=2).acquire(new_token(), "a").ok


@pytest.mark.rule("P4")
def test_another_daemon_is_refused_even_with_a_higher_generation(world: World) -> None:
    assert world.process().acquire(new_token(), "a").ok
    world.record.daemon = "engine-1/nonce-2"
    for generation in (0, 1):
        other = world.process(generation=generation)
        for call in (lambda o=other: o.acquire(new_token(), "b"), other.install):
            with pytest.raises(Refused, match="point DOCKER_HOST"):
                call()
        assert other.fence_expired().reason is Reason.DAEMON
    assert len(world.process().read().holders) == 1


@pytest.mark.rule("P12")
def test_a_lockdown_stops_what_begins_and_lets_end_what_ends(world: World) -> None:
    slots = world.process(limit=3)
    running, container = start(slots)
    reserved = take(slots)
    newer = world.process(generation=1)
    newer.ensure_verified()
    mark = slots.begin_pass()
    lockdown = slots.set_lockdown("a started container without a slot")
    assert slots.set_lockdown("another") == lockdown
    assert slots.acquire(new_token(), "a").reason is Reason.LOCKDOWN
    assert slots.register(reserved, "a", container_id()).reason is Reason.LOCKDOWN
    assert slots.adopt(running, "a", "b").reason is Reason.LOCKDOWN
    assert newer.install().reason is Reason.LOCKDOWN
    assert slots.renew(running, "a").outcome is Renewed.RENEWED
    assert slots.fence_own(running, "a").container_id == container
    assert slots.free(running, container).outcome is Freed.FREED
    config = slots.read().config
    assert config is not None
    assert config.lockdown_reason == "a started container without a slot"
    assert not slots.clear_lockdown(mark), "that pass began before the lockdown"
    assert slots.clear_lockdown(slots.begin_pass())
    assert slots.acquire(new_token(), "a").ok


@pytest.mark.rule("P15")
def test_waiters_are_counted_apart_and_leave_by_themselves(world: World) -> None:
    slots = world.process(limit=3)
    start(slots)
    take(slots)
    recovering, _ = start(slots)
    slots.fence_own(recovering, "a")
    first, second = new_token(), new_token()
    slots.acquire(first, "a", "5/1")
    slots.acquire(second, "a")
    counts = slots.read().counts
    assert (counts.waiting, counts.reserved, counts.running, counts.recovering) == (2, 1, 1, 1)
    since = next(w.age_seconds for w in slots.read().waiting if w.token == first)
    slots.acquire(first, "a", "5/1")
    assert next(w.age_seconds for w in slots.read().waiting if w.token == first) > since, "since the first ask"
    slots.leave(second)
    assert [w.run for w in slots.read().waiting] == ["5/1"]
    stored = str(world.server.client.hget(world.keys.waiting, first)).split(" ")
    stored[1] = str(int(stored[1]) - 30_000_001)
    world.server.client.hset(world.keys.waiting, first, " ".join(stored))
    assert slots.read().counts.waiting == 0
    slots.fence_expired()
    assert world.server.client.hlen(world.keys.waiting) == 0, "recovery forgets it"


@pytest.mark.rule("P15")
def test_who_gets_a_slot_waits_no_more(world: World) -> None:
    slots = world.process(limit=1)
    held, waiting = take(slots), new_token()
    assert slots.acquire(waiting, "a").outcome is Acquired.WAIT
    slots.fence_own(held, "a")
    slots.free(held, None)
    assert slots.acquire(waiting, "a").outcome is Acquired.GRANTED
    assert slots.read().counts.waiting == 0


def test_a_full_memory_stops_grants_and_nothing_else(make_world: Callable[..., World], start_server: Callable) -> None:
    own = start_server()
    world = make_world(own)
    slots = world.process()
    token, container = start(slots)
    reserved = take(slots)
    own.client.config_set("maxmemory", 1)
    with pytest.raises(Unavailable, match="memory is full"):
        slots.acquire(new_token(), "a")
    assert slots.register(reserved, "a", container_id()).ok
    assert slots.renew(token, "a").outcome is Renewed.RENEWED
    assert slots.fence_own(token, "a").outcome is FencedOwn.FENCED
    assert slots.free(token, container).outcome is Freed.FREED


def test_an_unreadable_entry_keeps_its_capacity_and_is_told(world: World) -> None:
    slots = world.process(limit=1)
    slots.ensure_verified()
    world.server.client.hset(world.keys.holders, "edited", "by hand")
    with pytest.raises(PhysicalError, match="UNREADABLE"):
        slots.acquire(new_token(), "a")


@pytest.mark.parametrize("value", ["", "with space", "ü", "x" * 201, "line\n"])
def test_fields_that_would_break_an_entry_are_refused(world: World, value: str) -> None:
    slots = world.process()
    with pytest.raises(ValueError, match="printable ASCII"):
        slots.acquire(new_token(), value)
    with pytest.raises(ValueError, match="full container id"):
        slots.register(new_token(), "a", value)


@pytest.mark.rule("P11")
def test_the_limit_is_compared_in_the_script_too(world: World) -> None:
    """The gate refuses such a process first; its own comparison is as old as its look."""
    slots = world.process(limit=2)
    slots.ensure_verified()
    slots._pair = ("0", "6")
    assert slots.acquire(new_token(), "a").reason is Reason.LIMIT
    assert slots.fence_expired().reason is Reason.LIMIT
    slots._pair = ("1", "6")
    assert slots.fence_expired().reason is Reason.NEWER
