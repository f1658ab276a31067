"""The ledger goes away, comes back, or comes back without its data."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from admission.physical.protocol import ABORT_SECONDS, HOLD_SECONDS
from tests.physical_docker.world import FULL, SCALED, Instance, LauncherProcess, Observer, eventually, remains
from tests.runners.agent.proxy import DockerProxy

LOST = "Redis has lost the slots of this instance"
CLOSED = "no place for a container"


def outage(instance: Instance, times: dict[str, float], abort: float, seconds: float) -> LauncherProcess:
    """A running execution, the ledger killed for `seconds` under load; returns the launcher after the restart."""
    launcher = instance.launcher(1, times=times)
    launcher.run(1)
    launcher.wait_for("made")
    launcher.run(2, "true")
    launcher.wait_for("slot_waiting")
    assert instance.redis.process is not None
    instance.redis.kill()
    launcher.run(3, "true")
    lost = launcher.wait_for("slot_lost", abort + 15)
    last = max(one["at"] for one in launcher.all("slot_ledger_silent"))
    assert lost["at"] - last <= abort + 1
    # Fails closed, and says why: nobody waits for ever in silence.
    assert "cannot be reached" in launcher.wait_for("refused", run=2)["error"]
    launcher.wait_for("refused", run=3)
    assert launcher.wait_for("ended", run=1)["reason"] == "lost"
    eventually(lambda: not instance.containers())
    remains(lambda: not instance.containers(), seconds)
    instance.redis.start()
    return launcher


@pytest.mark.rule("P9", "P13")
def test_without_the_ledger_running_executions_are_removed_in_time(instance: Instance) -> None:
    launcher = outage(instance, SCALED, SCALED["abort"], 1.5)
    launcher.run(4, "true")
    assert launcher.wait_for("ended", run=4)["code"] == 0
    eventually(lambda: not instance.holders())


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.rule("P9", "P13")
def test_a_minute_without_the_ledger(instance: Instance) -> None:
    launcher = outage(instance, FULL, ABORT_SECONDS, 60.0 - ABORT_SECONDS)
    launcher.run(4, "true")
    assert launcher.wait_for("ended", HOLD_SECONDS + 30, run=4)["code"] == 0
    eventually(lambda: not instance.holders(), HOLD_SECONDS + 10)


@pytest.mark.rule("P5", "P9")
def test_reservations_outlive_the_ledger(instance: Instance, observer: Observer) -> None:
    """Its holder cannot remove: the ledger comes back and still counts the container; then it is recovered."""
    victim = instance.launcher(1)
    victim.run(1)
    old = victim.wait_for("made")["container"]
    victim.signal(signal.SIGSTOP)
    instance.redis.kill()
    instance.redis.start()
    assert [one.container_id for one in instance.snapshot().holders] == [old]
    other = instance.launcher(1)
    other.run(2)
    new = other.wait_for("made")["container"]
    gone, started = observer.when("destroy", old), eventually(lambda: observer.when("start", new))
    assert gone is not None
    assert gone < started
    victim.signal(signal.SIGCONT)
    assert victim.wait_for("ended")["reason"] == "lost"
    remains(lambda: instance.containers() == {new: "running"})


@pytest.mark.rule("P12")
def test_a_lost_dataset_is_drained_before_it_counts_again(instance: Instance, observer: Observer) -> None:
    holder = instance.launcher(2)
    holder.run(1)
    old = holder.wait_for("made")["container"]
    # Suspended, it removes nothing itself: what is left must be found by its label.
    holder.signal(signal.SIGSTOP)
    instance.redis.kill()
    instance.redis.wipe()
    instance.redis.start()
    other = instance.launcher(2)
    other.run(2)
    new = other.wait_for("made")["container"]
    gone, created = observer.when("destroy", old), eventually(lambda: observer.when("create", new))
    assert gone is not None
    assert gone < created
    holder.signal(signal.SIGCONT)
    assert holder.wait_for("ended")["reason"] == "lost"
    assert [one.container_id for one in instance.snapshot().holders] == [new]


@pytest.mark.rule("P12")
def test_a_lost_dataset_is_told_for_as_long_as_its_containers_survive(instance: Instance, tmp_path: Path) -> None:
    with DockerProxy(tmp_path / "proxy.sock") as proxy:
        holder = instance.launcher(2)
        holder.run(1)
        old = holder.wait_for("made")["container"]
        holder.signal(signal.SIGSTOP)
        other = instance.launcher(2, endpoint=f"unix://{tmp_path}/proxy.sock")
        proxy.refuse = b"DELETE /"
        instance.redis.kill()
        instance.redis.wipe()
        instance.redis.start()
        other.run(2)
        refused = other.wait_for("refused", run=2)["error"]
        for told in (LOST, "nothing is admitted while", old[:12], "docker rm -f"):
            assert told in refused
        eventually(lambda: LOST in str(other.all("report")[-1]["problems"]))
        assert instance.snapshot().config is None
        assert list(instance.containers()) == [old]
        proxy.refuse = b""
        eventually(lambda: not other.all("report")[-1]["problems"], 30, "the last pass tells of nothing any more")
        assert old not in instance.containers()
        other.run(3, "true")
        assert other.wait_for("ended", run=3)["code"] == 0
        holder.signal(signal.SIGCONT)
        holder.wait_for("done", run=1)


@pytest.mark.rule("P12")
def test_a_lost_dataset_refuses_until_the_containers_are_gone(instance: Instance) -> None:
    holder = instance.launcher(2)
    holder.run(1)
    old = holder.wait_for("made")["container"]
    holder.signal(signal.SIGSTOP)
    instance.redis.kill()
    instance.redis.wipe()
    instance.redis.start()
    # Nobody passes: what the instance says of itself, before anything drained.
    assert instance.snapshot().config is None
    assert list(instance.containers()) == [old]
    holder.signal(signal.SIGCONT)
    assert holder.wait_for("ended", run=1)["reason"] == "lost"
    eventually(lambda: instance.snapshot().config is not None, 30)
    # Who asks while the instance is drained is refused; a driver asks again, this launcher does not.
    eventually(lambda: not holder.all("report")[-1]["problems"], 30)
    holder.run(2, "true")
    assert holder.wait_for("ended", run=2)["code"] == 0
    assert instance.snapshot().config is not None
