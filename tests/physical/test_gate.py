"""What has to be looked at before anything begins: the server, its settings, its data, the containers there are."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from admission.physical import gate
from admission.physical.errors import NotVerified, Refused, Unavailable
from admission.physical.outside import LedgerMark, Verified, View
from admission.physical.protocol import PhysicalSlots, SlotsReader, new_token
from admission.physical.redis_adapter import RedisServer
from admission.physical.results import Acquired, Freed, Installed, Reason, Renewed
from tests.physical.server import OwnRedis, free_port
from tests.physical.world import World, container_id

Make = Callable[..., World]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed look may be repeated at once."""
    monkeypatch.setattr(gate, "RETRY_SECONDS", 0.0)


@pytest.fixture(scope="module")
def mortal(product: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnRedis]:
    """A server that the tests here kill and put back."""
    own = OwnRedis(product, tmp_path_factory.mktemp("mortal"))
    own.start()
    yield own
    own.stop()


def in_force(slots: PhysicalSlots) -> bool:
    """Whether the daemon knows the ledger that this process counts by."""
    return slots.same_ledger(slots._gate.identity().ledger)


def run(slots: PhysicalSlots, world: World, owner: str = "a") -> str:
    """A token with a registered container on the shelf."""
    token, container = new_token(), container_id()
    assert slots.acquire(token, owner).ok
    world.shelf.containers[token] = container
    assert slots.register(token, owner, container).ok
    return token


# ---------------------------------------------------------------------- the server and its settings (P4)


@pytest.mark.rule("P4")
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"appendonly": "no"}, "appendonly yes"),
        ({"appendfsync": "no"}, "`appendfsync` is no"),
        ({"maxmemory-policy": "allkeys-lru"}, "`maxmemory-policy` is allkeys-lru"),
        ({"maxmemory-policy": "volatile-ttl"}, "`maxmemory-policy` is volatile-ttl"),
    ],
)
def test_a_server_that_may_lose_slots_is_refused_when_hosted_and_told_otherwise(
    make_world: Make,
    start_server: Callable[..., OwnRedis],
    options: dict[str, str],
    says: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = make_world(start_server(**options))
    with pytest.raises(Refused, match=says):
        world.process().acquire(new_token(), "a")
    assert world.server.client.dbsize() == 0
    slots = world.process(hosted=False)
    assert slots.acquire(new_token(), "a").ok
    assert says in slots.durability_warnings[0]
    assert "REDIS MAY LOSE PHYSICAL SLOTS" in caplog.text


@pytest.mark.rule("P4")
def test_a_setting_changed_under_a_running_server_is_found_by_the_next_pass(
    make_world: Make, start_server: Callable[..., OwnRedis]
) -> None:
    world = make_world(start_server())
    slots = world.process()
    slots.ensure_verified()
    world.server.client.config_set("maxmemory-policy", "allkeys-random")
    with pytest.raises(Refused, match="noeviction"):
        slots.ensure_verified()


@pytest.mark.rule("P4")
def test_who_may_not_read_the_settings_is_told_so(make_world: Make, start_server: Callable[..., OwnRedis]) -> None:
    world = make_world(start_server())
    world.server.client.execute_command(
        *["ACL", "SETUSER", "slots", "on", ">pw", "~wharfinger:admission:*", "+@all", "-config"]
    )
    url = world.server.url.replace("redis://", "redis://slots:pw@")
    with pytest.raises(Refused, match=r"CONFIG GET is refused.*\+config\|get"):
        world.process(url=url).acquire(new_token(), "a")
    slots = world.process(url=url, hosted=False)
    assert slots.acquire(new_token(), "a").ok
    assert "CONFIG GET" in slots.durability_warnings[0]


MINIMAL_USER = (
    "on >pw resetchannels ~wharfinger:admission:* -@all +info +config|get +select +evalsha +eval +time "
    "+hget +hset +hdel +hmget +hgetall +del"
)


def test_the_documented_least_user_suffices(make_world: Make, start_server: Callable[..., OwnRedis]) -> None:
    world = make_world(start_server())
    world.server.client.execute_command("ACL", "SETUSER", "slots", *MINIMAL_USER.split(" "))
    slots = world.process(url=world.server.url.replace("redis://", "redis://slots:pw@"))
    token = run(slots, world)
    slots.ensure_verified()
    slots.acquire(new_token(), "a")
    assert slots.renew(token, "a").outcome is Renewed.RENEWED
    slots.clear_lockdown(slots.begin_pass())
    container = slots.fence_own(token, "a").container_id
    assert slots.free(token, container).outcome is Freed.FREED
    documented = (Path(__file__).parents[2] / "docs/physical.md").read_text()
    assert MINIMAL_USER.replace(">pw", ">PASSWORD") in documented


@pytest.mark.rule("P4")
def test_replicas_clusters_and_wrong_passwords_are_refused(
    make_world: Make, start_server: Callable[..., OwnRedis], server: OwnRedis
) -> None:
    replica = start_server(replicaof=f"127.0.0.1 {server.port}")
    with pytest.raises(Refused, match="point REDIS_URL at the primary"):
        make_world(replica).process().acquire(new_token(), "a")
    cluster = start_server(cluster_enabled="yes", cluster_port=str(free_port()))
    with pytest.raises(Refused, match="one standalone server"):
        make_world(cluster).process().acquire(new_token(), "a")
    with pytest.raises(Refused, match="Correct the user and password"):
        make_world().process(url=server.url.replace("redis://", "redis://who:wrong@")).acquire(new_token(), "a")
    with pytest.raises(Refused, match="REDIS_URL cannot be read"):
        make_world().process(url="http://localhost")


# ---------------------------------------------------------------------- the data (P12)


@pytest.mark.rule("P12")
def test_a_missing_configuration_is_not_initialised_beside_containers(world: World) -> None:
    world.shelf.containers["unknown"] = container_id()
    world.shelf.stuck.add("unknown")
    for slots in (world.process(), world.process()):
        with pytest.raises(NotVerified, match="cannot be removed"):
            slots.acquire(new_token(), "a")
    assert not world.server.client.exists(world.keys.config)
    world.shelf.stuck.clear()
    assert world.process().acquire(new_token(), "a").ok
    assert world.shelf.containers == {}


@pytest.mark.rule("P12")
def test_after_a_restart_with_all_data_everything_goes_on(make_world: Make, mortal: OwnRedis) -> None:
    world = make_world(mortal)
    slots = world.process()
    token = run(slots, world)
    looks = world.shelf.looks
    mortal.restart()
    assert slots.renew(token, "a").outcome is Renewed.RENEWED
    assert world.shelf.looks == looks, "a renewal needs no look"
    assert slots.acquire(new_token(), "a").ok
    assert world.shelf.looks == looks + 1
    assert token in world.shelf.containers


@pytest.mark.rule("P12")
def test_lost_data_admit_nothing_until_what_ran_is_gone(make_world: Make, mortal: OwnRedis) -> None:
    world = make_world(mortal)
    slots, other = world.process(), world.process()
    token = run(slots, world)
    world.shelf.stuck.add(token)
    other.ensure_verified()
    first = world.record.ledger()
    mortal.wipe()
    assert slots.renew(token, "a").reason is Reason.NO_CONFIG
    for process in (slots, other, world.process()):
        with pytest.raises(NotVerified):
            process.acquire(new_token(), "a")
    assert not mortal.client.exists(world.keys.config)
    world.shelf.stuck.clear()
    assert other.acquire(new_token(), "b").ok
    assert world.shelf.containers == {}
    ledger = world.record.ledger()
    assert first is not None
    assert ledger is not None
    assert ledger.number == first.number + 1
    # What the first process still holds of the lost ledger is worth nothing in the new one.
    assert slots.renew(token, "a").outcome is Renewed.UNKNOWN


@pytest.mark.rule("P12")
@pytest.mark.rule("P8")
def test_an_older_state_admits_and_registers_nothing_before_its_containers_are_known(
    make_world: Make, mortal: OwnRedis
) -> None:
    """The registration of a running container is lost, a released holder is back: N + 1 is one start away."""
    world = make_world(mortal, limit=2)
    slots, late = world.process(), world.process()
    reserved = new_token()
    assert late.acquire(reserved, "late").ok
    saved = mortal.save_state()
    late.fence_own(reserved, "late")
    late.free(reserved, None)
    running = [run(slots, world), run(slots, world)]
    world.shelf.stuck.update(running)
    mortal.restore(saved)
    # The restored state un-fenced the late one. It may not register beside two that run.
    for call in (
        lambda: late.register(reserved, "late", container_id()),
        lambda: slots.acquire(new_token(), "a"),
        lambda: late.adopt(reserved, "late", "new"),
        lambda: world.process(generation=1).install(),
    ):
        with pytest.raises(NotVerified):
            call()
    assert slots.renew(running[0], "a").outcome is Renewed.UNKNOWN, "its holder aborts"
    world.shelf.stuck.clear()
    assert slots.acquire(new_token(), "a").ok
    assert world.shelf.containers == {}


@pytest.mark.rule("P11")
def test_a_restored_older_generation_does_not_admit_superseded_processes(make_world: Make, mortal: OwnRedis) -> None:
    world = make_world(mortal, limit=6)
    old = world.process(limit=6, generation=0)
    old.ensure_verified()
    saved = mortal.save_state()
    new = world.process(limit=2, generation=1)
    assert new.install().outcome is Installed.INSTALLED
    mortal.restore(saved)
    assert old.acquire(new_token(), "o").outcome is Acquired.SUPERSEDED
    assert old.install().outcome is Installed.SUPERSEDED
    with pytest.raises(Refused, match="stands for a limit of 2"):
        world.process(limit=12, generation=1).install()
    assert new.install().outcome is Installed.INSTALLED
    assert new.acquire(new_token(), "n").ok


@pytest.mark.rule("P11")
def test_the_generation_is_kept_outside_before_redis_learns_of_it(make_world: Make, mortal: OwnRedis) -> None:
    """Killed between the two, the installer leaves a refusal, not a way back."""
    world = make_world(mortal, limit=2)
    old = world.process()
    old.ensure_verified()
    new = world.process(limit=6, generation=1)
    new.ensure_verified()
    mortal.pause()

    def unanswered() -> None:
        with pytest.raises(Unavailable):
            new.install()

    install = threading.Thread(target=unanswered)
    install.start()
    deadline = time.monotonic() + 4
    while (mark := world.record.generation()) is None or mark.generation != 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    mortal.kill()
    install.join()
    mortal.start()
    assert old.acquire(new_token(), "o").outcome is Acquired.SUPERSEDED
    assert new.install().outcome is Installed.INSTALLED


@pytest.mark.rule("P12")
def test_two_servers_never_both_keep_the_ledger_of_one_instance(
    make_world: Make, start_server: Callable[..., OwnRedis]
) -> None:
    world = make_world(start_server())
    here = world.process()
    assert here.acquire(new_token(), "a").ok
    elsewhere = world.process(url=start_server().url)
    # The other server begins a ledger of its own, which takes the place of the first …
    assert elsewhere.acquire(new_token(), "b").ok
    assert in_force(elsewhere)
    # … and whoever still counts in the first one finds out before it starts, and at its next pass.
    assert not in_force(here)
    assert here.acquire(new_token(), "a").ok
    here.ensure_verified()
    assert in_force(here)
    assert not in_force(elsewhere)


@pytest.mark.rule("P12")
def test_another_dataset_is_replaced_only_after_everything_is_drained(world: World) -> None:
    """Also what its own holders name: they are of another ledger, and would be forgotten with it."""
    token = run(world.process(), world)
    world.shelf.stuck.add(token)
    ours = world.record.ledger()
    assert ours is not None
    world.record.put_ledger(LedgerMark(ours.number + 1, "of another server"))
    other = world.process()
    with pytest.raises(NotVerified):
        other.acquire(new_token(), "b")
    snapshot = other.read()
    assert snapshot.config is not None
    assert snapshot.config.ledger == ours.ledger
    assert snapshot.tokens == {token}
    world.shelf.stuck.clear()
    assert other.acquire(new_token(), "b").ok
    assert world.shelf.containers == {}
    assert token not in other.read().tokens


@pytest.mark.rule("P12")
def test_of_two_that_begin_a_ledger_at_once_one_wins(world: World) -> None:
    processes = [world.process() for _ in range(6)]
    barrier = threading.Barrier(len(processes))
    errors: list[BaseException] = []

    def begin(slots: PhysicalSlots) -> None:
        try:
            barrier.wait()
            slots.ensure_verified()
        except BaseException as error:  # noqa: BLE001 - reported by the test
            errors.append(error)

    threads = [threading.Thread(target=begin, args=(slots,)) for slots in processes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    config = processes[0].read().config
    assert config is not None
    assert world.record.ledger() == LedgerMark(config.ledger_number, config.ledger)
    assert all(in_force(slots) for slots in processes)


@pytest.mark.rule("P12")
def test_what_was_registered_is_judged_by_its_own_ledger_also_when_the_process_has_learnt_of_another(
    world: World,
) -> None:
    """Between the registration and the start another thread's pass takes the process over to the next ledger."""
    slots = world.process()
    token = new_token()
    assert slots.acquire(token, "a").ok
    registered = slots.register(token, "a", container_id())
    assert registered.ok
    assert slots.same_ledger(registered.ledger)
    ours = world.record.ledger()
    assert ours is not None
    world.record.put_ledger(LedgerMark(ours.number + 1, "of another server"))
    slots.ensure_verified()
    assert in_force(slots)
    assert not slots.same_ledger(registered.ledger)


@pytest.mark.rule("P12", "P10")
@pytest.mark.parametrize("lost", ["never began", "of another server"])
def test_who_comes_late_to_a_ledger_that_another_began_leaves_its_containers_alone(world: World, lost: str) -> None:
    """Held up between "there is no ledger" and the listing, it would take what runs by then for leftovers."""
    if lost == "of another server":
        world.process().ensure_verified()
        ours = world.record.ledger()
        assert ours is not None
        world.record.put_ledger(LedgerMark(ours.number + 1, "of another server"))
    first, late = world.process(), world.process()
    usual, begun = world.shelf.verify, list[str]()

    def held_up(view: View) -> Verified:
        if not begun:
            begun.append(run(first, world))
        return usual(view)

    late._gate._verify = held_up
    late.ensure_verified()
    assert set(world.shelf.containers) == set(begun) == late.read().tokens
    config = late.read().config
    assert config is not None
    assert world.record.ledger() == LedgerMark(config.ledger_number, config.ledger)


@pytest.mark.rule("P12")
def test_who_dies_between_redis_and_the_daemon_leaves_a_ledger_that_the_next_completes(world: World) -> None:
    slots = world.process()
    slots.ensure_verified()
    config = slots.read().config
    assert config is not None
    world.record.lose()
    other = world.process()
    assert other.acquire(new_token(), "a").ok
    assert world.record.ledger() == LedgerMark(config.ledger_number, config.ledger)
    slots.ensure_verified()
    assert in_force(slots)


@pytest.mark.rule("P12")
def test_emptied_under_a_running_server_is_found_by_the_next_script(world: World) -> None:
    slots = world.process()
    token = run(slots, world)
    for key in world.keys.all:
        world.server.client.delete(key)
    assert slots.acquire(new_token(), "a").reason is Reason.NO_CONFIG
    assert slots.acquire(new_token(), "a").ok, "after a look that drained the instance"
    assert token not in world.shelf.containers


def test_what_a_look_finds_counts_for_its_incarnation_only(make_world: Make, mortal: OwnRedis) -> None:
    """The server restarts while the containers are being listed: that look proves nothing about the new one."""
    world = make_world(mortal)
    world.process().ensure_verified()
    slots = world.process()
    usual = world.shelf.verify

    def restart_meanwhile(view: View) -> Verified:
        mortal.restart()
        return usual(view)

    slots._gate._verify = restart_meanwhile
    with pytest.raises(Unavailable):
        slots.acquire(new_token(), "a")
    slots._gate._verify = usual
    looks = world.shelf.looks
    assert slots.acquire(new_token(), "a").ok
    assert world.shelf.looks == looks + 1


@pytest.mark.rule("P12")
def test_a_pass_of_an_earlier_incarnation_ends_no_lockdown(make_world: Make, mortal: OwnRedis) -> None:
    world = make_world(mortal)
    slots = world.process()
    slots.ensure_verified()
    slots.set_lockdown("found one")
    mark = slots.begin_pass()
    world.shelf.containers["left"] = container_id()
    world.shelf.stuck.add("left")
    mortal.restart()
    with pytest.raises(NotVerified):
        slots.clear_lockdown(mark)
    world.shelf.stuck.clear()
    slots.ensure_verified()
    assert not slots.clear_lockdown(mark)


# ---------------------------------------------------------------------- connections


@pytest.mark.rule("P12")
def test_no_script_is_repeated_on_another_connection(make_world: Make, mortal: OwnRedis) -> None:
    world = make_world(mortal)
    slots = world.process()
    slots.ensure_verified()
    with slots._server.connection() as connection:
        mortal.restart()
        with pytest.raises(Unavailable):
            connection.call("PING")
        assert not connection.usable
        with pytest.raises(Unavailable, match="broke before"):
            connection.call("PING")
    with slots._server.connection() as another:
        assert another is not connection
        assert another.run_id != connection.run_id


@pytest.mark.rule("P13")
def test_a_silent_server_is_waited_for_so_long_and_no_longer(make_world: Make, mortal: OwnRedis) -> None:
    world = make_world(mortal)
    slots = world.process(seconds=0.4)
    token = run(slots, world)
    mortal.pause()
    try:
        began = time.monotonic()
        with pytest.raises(Unavailable, match="may still take effect"):
            slots.renew(token, "a")
        assert 0.3 < time.monotonic() - began < 2
    finally:
        mortal.resume()
    # It did take effect, late, and harmed nothing; the connection is not used again, its answer would be mistaken.
    assert slots.renew(token, "a").outcome is Renewed.RENEWED


@pytest.mark.rule("P10")
def test_a_killed_server_fails_closed_and_keeps_what_was_held(make_world: Make, mortal: OwnRedis) -> None:
    world = make_world(mortal, limit=1)
    slots = world.process()
    token = run(slots, world)
    mortal.kill(signal.SIGKILL)
    for call in (lambda: slots.acquire(new_token(), "a"), lambda: slots.renew(token, "a"), slots.read):
        with pytest.raises(Unavailable):
            call()
    mortal.start()
    assert slots.acquire(new_token(), "a").outcome is Acquired.WAIT
    assert slots.renew(token, "a").outcome is Renewed.RENEWED


def test_a_server_that_forgot_the_scripts_is_given_them_again(world: World) -> None:
    slots = world.process()
    slots.ensure_verified()
    world.server.client.script_flush()
    assert slots.acquire(new_token(), "a").ok


def test_a_failing_look_is_not_repeated_by_every_waiting_thread(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "RETRY_SECONDS", 60.0)
    world.shelf.containers["x"] = container_id()
    world.shelf.stuck.add("x")
    slots = world.process()
    for _ in range(5):
        with pytest.raises(NotVerified):
            slots.acquire(new_token(), "a")
    assert world.shelf.looks == 1


def test_reading_needs_no_gate_and_no_write(world: World) -> None:
    slots = world.process()
    token = run(slots, world)
    reader = SlotsReader(RedisServer(world.server.url), world.entitlement().instance)
    assert reader.read().tokens == {token}
    reader.close()
