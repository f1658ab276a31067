"""The cap over processes, seen from the daemon."""

from __future__ import annotations

import pytest

from tests.physical_docker.world import FULL, Instance, Observer, eventually, remains

EXECUTIONS = 30


def saturate(
    instance: Instance, observer: Observer, tier: int, executions: int, times: dict[str, float] | None
) -> None:
    launchers = [instance.launcher(tier, times=times) for _ in range(3)]
    gate = "sh -c 'while ! [ -e /tmp/go ]; do sleep 0.05; done'"
    for number in range(executions):
        launchers[number % 3].run(number, gate)
    eventually(lambda: instance.running() == tier, 60)
    # N + 1 neither creates nor starts.
    remains(lambda: len(instance.containers()) == tier and observer.count("create") == tier)
    assert instance.holders() == tier
    for ended in range(1, executions + 1):
        victim = next(c for c, state in instance.containers().items() if state == "running")
        instance.adapter.kill(victim, "SIGKILL")
        more = min(tier + ended, executions)
        eventually(lambda n=more: observer.count("start") == n, 30, f"{more} started")
        eventually(lambda n=ended: observer.count("destroy") == n, 30)
    eventually(lambda: sum(len(one.all("done")) for one in launchers) == executions, 30)
    assert observer.count("start") == observer.count("create") == executions
    assert observer.peak("create", "destroy") == tier
    assert observer.peak("start", "die") == tier
    eventually(lambda: instance.holders() == 0)
    assert not instance.containers()


@pytest.mark.rule("P1", "P2", "P7", "P8")
@pytest.mark.parametrize("tier", [2])
def test_no_more_than_the_tier_exists(instance: Instance, observer: Observer, tier: int) -> None:
    saturate(instance, observer, tier, 8, None)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.rule("P1", "P2", "P7", "P8")
@pytest.mark.parametrize("tier", [2, 6, 12])
def test_no_more_than_each_tier_exists(instance: Instance, observer: Observer, tier: int) -> None:
    saturate(instance, observer, tier, EXECUTIONS, FULL)
