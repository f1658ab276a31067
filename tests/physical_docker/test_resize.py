"""Another tier: up, down, back, with launchers of the generations before still there."""

from __future__ import annotations

import signal

import pytest

from tests.physical_docker.world import Instance, Observer, eventually, remains


@pytest.mark.rule("P11", "P1")
def test_up_down_and_back_again(instance: Instance, observer: Observer) -> None:
    """0 -> 1 up, 1 -> 2 down, 3 the rollback to what 1 allowed, and 3 once more."""
    tiers = {0: 1, 1: 2, 2: 1, 3: 2}
    old = []
    made = []
    for number, (generation, limit) in enumerate(tiers.items(), 1):
        # Suspended before its registration or before its start: nothing it does afterwards may count.
        slow = instance.launcher(limit, generation, pause_at=("registered", "created")[number % 2])
        slow.run(number)
        suspended = slow.wait_for("suspended")
        eventually(lambda c=suspended["container"]: instance.containers() == {c: "created"})
        old.append(slow)
        made.append(suspended["container"])
    again, newest = instance.launcher(2, 3), instance.launcher(2, 3)
    for launcher in old:
        launcher.signal(signal.SIGCONT)
    for launcher in old[:-1]:
        assert launcher.wait_for("ended")["reason"] == "lost"
    old[-1].do(do="cancel", run=len(tiers))
    old[-1].wait_for("done")
    for number, launcher in enumerate((again, newest), 10):
        launcher.run(number)
        launcher.wait_for("made")
    assert instance.running() == 2
    assert instance.holders() == 2
    assert {one.generation for one in instance.snapshot().holders} == {3}
    for launcher in old[:-1]:
        launcher.run(20, "true")
    # Superseded for good, also with the limit that is in force: told, not started.
    for launcher in old[:-1]:
        eventually(lambda one=launcher: any("superseded" in str(r["problems"]) for r in one.all("report")))
    remains(lambda: instance.running() == 2 and not any(one.all("made", run=20) for one in old))
    assert observer.peak("start", "die") == observer.peak("create", "destroy") == 2
    # What the suspended ones had made was never started, by them or by anybody.
    assert [observer.when("start", container) for container in made[:-1]] == [None] * 3


@pytest.mark.rule("P11")
def test_an_idle_instance_installs_what_is_provisioned(instance: Instance) -> None:
    holder = instance.launcher(1, 0)
    holder.run(1)
    holder.wait_for("made")
    new = instance.launcher(6, 1)
    new.wait_for("slot_generation_installed")
    assert holder.wait_for("ended")["reason"] == "lost"
    eventually(lambda: not instance.containers() and not instance.holders())
    config = instance.snapshot().config
    assert config is not None
    assert (config.limit, config.generation) == (6, 1)


@pytest.mark.rule("P11", "P4")
def test_a_changed_limit_alone_is_refused(instance: Instance) -> None:
    instance.launcher(2, 1)
    other = instance.launcher(6, 1, ready=False)
    assert "raise CONTROLPLANE_RUN_GENERATION" in other.wait_for("cannot_start")["error"]
    older = instance.launcher(6, 0, ready=False)
    assert "superseded" in older.wait_for("cannot_start")["error"]


@pytest.mark.rule("P3", "P4")
@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"CONTROLPLANE_INSTANCE_ID": ""}, "CONTROLPLANE_INSTANCE_ID is missing"),
        ({"CONTROLPLANE_FLEET_SECRET": "?", "CONTROLPLANE_RUN_LIMIT": "50"}, "CONTROLPLANE_WORKER_CONCURRENCY"),
        ({"REDIS_URL": ""}, "REDIS_URL is not set"),
    ],
)
def test_what_is_missing_is_said_at_the_start(instance: Instance, variables: dict[str, str], said: str) -> None:
    launcher = instance.launcher(2, ready=False, environment=variables)
    assert said in launcher.wait_for("cannot_start")["error"]
    assert launcher.process.wait() == 78
