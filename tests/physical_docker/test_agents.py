"""Agents of an instance: `wharfinger runner run` under the physical limit, beside a replica and after a kill."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from admission.models import Attempt
from admission.states import DriverKind
from controlplane.core.audit import SYSTEM
from runners.services.enrolment import issue_enrolment_token
from tests import ledger
from tests.fencing.world import BOOT_SECONDS, Fleet, Victim, start_process
from tests.physical_docker.test_replicas import FOREVER, states, submit, variables
from tests.physical_docker.world import SCALED, Instance, Observer, eventually, remains

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(300)]
HERE = {"trust.place": "agent"}
"""A label that only the agent has: what names it is executed by the agent alone."""

CLI = """
import functools, json, sys
from runners.agent.physical import building, keeper

times = json.loads(sys.argv.pop(1))
if times:
    building.make_keeper = functools.partial(building.make_keeper, times=keeper.Times(**times))
from runners.cli import main

main()
"""

Start = Callable[..., Victim]


@pytest.fixture
def agent(instance: Instance, live_server: Any, tmp_path: Path) -> Iterator[Start]:
    """Start `wharfinger runner run` on this instance: no database, an enrolment token, the limit's variables."""
    started: list[Victim] = []

    def start(limit: int, times: dict[str, float] | None = None) -> Victim:
        _, secret = issue_enrolment_token(actor=SYSTEM, trust_labels=HERE)
        hidden = ("DATABASE_URL", "SECRET_KEY", "DJANGO_SETTINGS_MODULE", "REDIS_URL")
        env = {
            **{name: value for name, value in os.environ.items() if name not in hidden},
            **variables(instance, limit),
            "WHARFINGER_URL": live_server.url,
            "WHARFINGER_ENROLMENT_TOKEN": secret,
            "WHARFINGER_RUNNER_STATE": str(tmp_path / "agent"),
            "CONTROLPLANE_SCRATCH_DIR": str(tmp_path / "scratch"),
        }
        words = ["runner", "run", "--name", "agent", "--executor", "docker", "--slots", "1"]
        victim = start_process(["-c", CLI, json.dumps(times or {}), *words], env, tmp_path / "agent.log")
        started.append(victim)
        eventually(lambda: victim.alive() and "connected" in victim.text(), BOOT_SECONDS, "the agent is connected")
        return victim

    yield start
    for victim in started:
        victim.end()


@pytest.mark.rule("P1", "P2", "P4", "A29")
def test_an_agent_and_a_replica_of_one_instance_share_its_cap(
    instance: Instance, observer: Observer, agent: Start, tmp_path: Path
) -> None:
    with Fleet(tmp_path, "off", "docker", 1.0) as fleet:
        fleet.replica("one", **variables(instance, 2))
        agent(2)
        short = ["sleep", "0.7"]
        runs = submit(instance, 3, short, labels=HERE) + submit(instance, 5, short)
        eventually(lambda: states(runs) == {"succeeded": len(runs)}, 90)
        kinds = list(Attempt.objects.filter(run__in=runs).values_list("driver_kind", flat=True))
        assert len(kinds) == len(runs)
        assert kinds.count(DriverKind.RUNNER) >= 3
        assert DriverKind.REPLICA in kinds
        assert observer.peak("create", "destroy") == 2
        assert observer.count("create") == observer.count("destroy") == len(runs)
        eventually(lambda: not instance.holders(), 10)
    assert not instance.containers()
    ledger.assert_conserved()


@pytest.mark.rule("P6", "P10")
def test_a_killed_agents_container_is_gone_before_another_process_starts_one(
    instance: Instance, observer: Observer, agent: Start
) -> None:
    victim = agent(1, SCALED)
    (run,) = submit(instance, 1, FOREVER, labels=HERE)
    eventually(lambda: states([run]) == {"running": 1} and instance.running() == 1, 60)
    (held,) = instance.snapshot().holders
    assert held.container_id is not None
    other = instance.launcher(1)
    other.run(2)
    # It waits for the one place, and makes nothing.
    eventually(lambda: instance.snapshot().waiting, 10)
    remains(lambda: instance.containers() == {held.container_id: "running"}, 1)
    victim.fail("killed")
    made = other.wait_for("made", run=2)["container"]
    gone, begun = observer.when("destroy", held.container_id), observer.when("create", made)
    assert gone is not None
    assert begun is not None
    assert gone < begun
    assert observer.peak("create", "destroy") == 1
    other.do(do="cancel", run=2)
    other.wait_for("done", run=2)
    assert not instance.containers()
    assert not instance.holders()
