"""Holders that die, stand still or lose replies: what they left is removed before its place is another's."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest

from admission.spec import parse_spec
from runners.agent.assignment import Assignment
from runners.agent.executors.docker import DockerExecutor
from runners.agent.physical.building import make_keeper
from runners.agent.physical.keeper import Times
from tests.physical_docker.world import SCALED, Instance, Observer, eventually, remains
from tests.runners.agent.proxy import DockerProxy


@pytest.mark.rule("P6", "P10")
def test_a_dead_holders_container_is_removed_before_the_next_starts(instance: Instance, observer: Observer) -> None:
    victim, other = instance.launcher(1), instance.launcher(1)
    victim.run(1)
    old = victim.wait_for("slot_admitted")["container"]
    victim.wait_for("made")
    other.run(2)
    other.wait_for("slot_waiting")
    victim.kill()
    new = other.wait_for("slot_admitted")["container"]
    eventually(lambda: observer.when("start", new))
    gone, started = observer.when("destroy", old), observer.when("start", new)
    assert gone is not None
    assert started is not None
    assert gone < started
    assert observer.peak("create", "destroy") == 1


@pytest.mark.rule("P10")
def test_an_idle_instance_heals(instance: Instance) -> None:
    victim = instance.launcher(2)
    idle = instance.launcher(2)
    victim.run(1)
    victim.wait_for("made")
    victim.kill()
    eventually(lambda: not instance.containers() and not instance.holders())
    assert idle.all("slot_recovered")


@pytest.mark.rule("P6", "P7", "P10")
@pytest.mark.parametrize("place", ["created", "registered"])
def test_a_suspended_launcher_neither_registers_nor_starts_afterwards(
    instance: Instance, observer: Observer, place: str
) -> None:
    slow, other = instance.launcher(1, pause_at=place), instance.launcher(1)
    slow.run(1)
    old = slow.wait_for("suspended")["container"]
    assert instance.containers() == {old: "created"}
    other.run(2)
    new = other.wait_for("made")["container"]
    assert instance.containers() == {new: "running"}
    slow.signal(signal.SIGCONT)
    end = slow.wait_for("ended")
    assert end["reason"] == "lost"
    slow.wait_for("done")
    # The one that went on had released nothing of the other's.
    remains(lambda: instance.containers() == {new: "running"} and instance.holders() == 1)
    assert [one.container_id for one in instance.snapshot().holders] == [new]
    assert (observer.when("start", old), observer.count("start")) == (None, 1)
    assert observer.peak("create", "destroy") == 1


@pytest.mark.rule("P7", "P13")
def test_what_was_created_without_an_answer_is_found_and_removed(
    instance: Instance, observer: Observer, tmp_path: Path
) -> None:
    with DockerProxy(tmp_path / "proxy.sock") as proxy:
        victim = instance.launcher(1, endpoint=f"unix://{tmp_path}/proxy.sock")
        proxy.hold_reply = b"/containers/create"
        victim.run(1)
        eventually(instance.containers)
        victim.kill()
    survivor = instance.launcher(1)
    survivor.run(2)
    made = survivor.wait_for("made")["container"]
    assert instance.containers() == {made: "running"}
    # Removed before another was made, though nobody ever knew its id.
    assert observer.peak("create", "destroy") == 1
    assert observer.count("start") == 1


@pytest.mark.rule("P7", "P13")
def test_a_lost_create_reply_is_found_by_its_label(instance: Instance, tmp_path: Path) -> None:
    with DockerProxy(tmp_path / "proxy.sock") as proxy:
        launcher = instance.launcher(1, endpoint=f"unix://{tmp_path}/proxy.sock")
        proxy.lose_reply = b"/containers/create"
        launcher.run(1, "true")
        assert launcher.wait_for("ended")["code"] == 0
        assert proxy.seen(b"/containers/create") == 1
        launcher.wait_for("done")
        eventually(lambda: not instance.holders())
        assert not instance.containers()


@pytest.mark.rule("P6", "P10")
def test_a_refused_removal_keeps_the_place_and_is_told(instance: Instance, tmp_path: Path) -> None:
    with DockerProxy(tmp_path / "proxy.sock") as proxy:
        endpoint = f"unix://{tmp_path}/proxy.sock"
        victim = instance.launcher(1, endpoint=endpoint)
        other = instance.launcher(1, endpoint=endpoint)
        victim.run(1)
        victim.wait_for("made")
        proxy.refuse = b"DELETE /"
        victim.kill()
        other.run(2)
        other.wait_for("slot_waiting")
        eventually(lambda: instance.snapshot().counts.recovering == 1)
        remains(lambda: instance.snapshot().counts.recovering == 1 and len(instance.containers()) == 1, 3)
        proxy.refuse = b""
        other.wait_for("made", 90)
        assert instance.running() == 1


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.rule("P6", "P10", "P13")
def test_a_removal_refused_for_long_is_reported(instance: Instance, tmp_path: Path) -> None:
    with DockerProxy(tmp_path / "proxy.sock") as proxy:
        endpoint = f"unix://{tmp_path}/proxy.sock"
        victim, other = instance.launcher(1, endpoint=endpoint), instance.launcher(1, endpoint=endpoint)
        victim.run(1)
        victim.wait_for("made")
        proxy.refuse = b"DELETE /"
        victim.kill()
        other.run(2)
        other.wait_for("remove_failed", 90)
        eventually(lambda: any("is still there" in str(r["problems"]) for r in other.all("report")), 20)
        assert instance.snapshot().counts.recovering == 1
        assert len(instance.containers()) == 1
        proxy.refuse = b""
        other.wait_for("made", 90)


@pytest.mark.rule("P1", "P6")
def test_a_place_where_nothing_could_be_begun_runs_out(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entered, and then the process has no descriptor left: nobody would release it, and renewals would go on."""
    variables = {
        "REDIS_URL": instance.redis.url,
        "CONTROLPLANE_INSTANCE_ID": instance.id,
        "CONTROLPLANE_RUN_LIMIT": "1",
    }
    keeper = make_keeper(variables, instance.adapter, Times(**SCALED))
    keeper.start(lambda name, /, **fields: None)
    executor = DockerExecutor(instance.adapter, slots=keeper)
    spec = parse_spec({"image": instance.image, "command": ["true"]})
    given = Assignment(run=1, epoch=1, attempt=1, tenant="t", spec=spec)

    def none_left(flags: int) -> tuple[int, int]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    try:
        monkeypatch.setattr("runners.agent.executors.docker_execution.os.pipe2", none_left)
        with pytest.raises(OSError, match="Too many open files"):
            executor.start(given, lambda data: None, {})
        monkeypatch.undo()
        assert instance.holders() == 1
        eventually(lambda: not instance.holders(), 15)
        assert not instance.containers()
    finally:
        keeper.close()


@pytest.mark.rule("P8")
@pytest.mark.parametrize("phase", ["waiting", "created", "running"])
def test_cancel_in_each_phase(instance: Instance, observer: Observer, phase: str) -> None:
    first = instance.launcher(1, pause_at="created" if phase == "created" else "")
    first.run(1)
    if phase == "created":
        first.wait_for("suspended")
        first.do(do="cancel", run=1)
        first.signal(signal.SIGCONT)
    elif phase == "waiting":
        first.wait_for("made")
        second = instance.launcher(1)
        second.run(2)
        second.wait_for("slot_waiting")
        second.do(do="cancel", run=2)
        assert second.wait_for("refused")["reason"] == "cancelled"
        first.do(do="cancel", run=1)
        eventually(lambda: not instance.snapshot().waiting)
    else:
        first.wait_for("made")
        first.do(do="cancel", run=1)
    assert first.wait_for("ended")["reason"] == "cancelled"
    first.wait_for("done")
    eventually(lambda: not instance.holders() and not instance.containers())
    assert (observer.count("create"), observer.count("start")) == (1, 0 if phase == "created" else 1)


def test_times_are_scaled_alike() -> None:
    assert SCALED["renew"] * 2 <= SCALED["abort"] < SCALED["hold"]
