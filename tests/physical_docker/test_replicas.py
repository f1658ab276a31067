"""Replicas of an instance: the ledger's limits and the physical one, each in force by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from admission.engine import Envelope, admit
from admission.models import Permit, PhysicalReport, Run
from admission.services.limits import set_key_limit
from admission.services.physical import reconcile_now
from admission.services.runs import cancel_runs
from controlplane.core.audit import SYSTEM, Actor
from recovery.services.replicas import replica_driver
from runners.agent.executors.images import ensure_python_image
from tests import ledger
from tests.fencing.world import Fleet
from tests.physical_docker.world import FULL, Instance, Observer, eventually, remains

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(300)]
FOREVER = ["sleep", "600"]
SMALL = {"memory_mib": 32, "cpu": 0.1}


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path, "off", "docker", 1.0) as made:
        yield made


def variables(instance: Instance, limit: int, **more: str) -> dict[str, str]:
    return {
        "REDIS_URL": instance.redis.url,
        "CONTROLPLANE_INSTANCE_ID": instance.id,
        "CONTROLPLANE_RUN_LIMIT": str(limit),
        **more,
    }


def states(runs: list[int]) -> dict[str, int]:
    found = list(Run.objects.filter(pk__in=runs).values_list("state", flat=True))
    return {state: found.count(state) for state in set(found)}


def submit(instance: Instance, count: int, command: list[str] = FOREVER, **spec: Any) -> list[int]:
    tenant = spec.pop("tenant", None) or ledger.make_tenant()
    return ledger.submit(tenant, count, command=command, image=instance.image, resources=SMALL, **spec)


def reports(instance: Instance, **fields: object) -> list[str]:
    found = PhysicalReport.objects.filter(
        instance=instance.hash, containers_running=2, without_token=0, last_error="", **fields
    )
    return sorted(found.values_list("process", flat=True))


@pytest.mark.rule("P2", "P8", "P10", "P14", "P15", "P18", "A28", "A29")
def test_two_replicas_one_cap(
    instance: Instance, observer: Observer, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = ledger.make_tenant()
    set_key_limit(tenant, "repository", 1, actor=SYSTEM)
    keyed = submit(instance, 3, tenant=tenant, concurrency_key="repository")
    for name in ("one", "two"):
        # What a settings page or an API may say of concurrency changes nothing.
        fleet.replica(name, **variables(instance, 2, CONTROLPLANE_WORKER_CONCURRENCY="50"))
    eventually(lambda: states(keyed).get("running") == 1, 60)
    others = submit(instance, 3, tenant=tenant)
    eventually(lambda: states(others).get("running") == 1, 60)
    eventually(lambda: instance.running() == 2, 60)
    # The key holds one, another key uses the rest; who waits is not started, and nobody holds more than it can start.
    remains(lambda: states(keyed + others).get("running") == 2 and len(instance.containers()) == 2)
    # Exempt: what executes nothing runs at full capacity, and counts for nothing.
    ensure_python_image(adapter=instance.adapter)
    assert instance.adapter.image_id(instance.image)
    assert instance.holders() == 2

    waiting = Run.objects.filter(pk__in=others, state="queued").values_list("pk", flat=True)[0]
    cancel_runs([waiting], actor=SYSTEM)
    active = Run.objects.get(pk__in=others, state="running").pk
    cancel_runs([active], actor=SYSTEM)
    eventually(lambda: states([waiting, active]) == {"cancelled": 2}, 30)
    assert Run.objects.get(pk=waiting).started_at is None
    assert Run.objects.get(pk=active).cancel_confirmed_at is not None
    eventually(lambda: states(others).get("running") == 1, 30)
    assert observer.peak("create", "destroy") == 2

    for name, value in variables(instance, 2).items():
        monkeypatch.setenv(name, value)
    number = reconcile_now(actor=Actor("an operator"), reason="a test")
    eventually(lambda: reports(instance, reconcile_seen=number) == ["one", "two"], 30)
    cancel_runs(keyed + others, actor=SYSTEM)
    eventually(lambda: states(keyed + others) == {"cancelled": 6} and not instance.holders(), 60)
    assert not instance.containers()


@pytest.mark.rule("A29", "Q5", "P13")
def test_who_waits_too_long_for_a_place_goes_back(instance: Instance, fleet: Fleet) -> None:
    occupant = instance.launcher(1, times=FULL)
    occupant.run(1)
    occupant.wait_for("made")
    hold = {"CONTROLPLANE_START_DEADLINE_SECONDS": "4"}
    _, row = fleet.replica("late", **variables(instance, 1, **hold), CONTROLPLANE_REPLICA_SLOTS="4")
    runs = submit(instance, 1)
    remains(lambda: states(runs) == {"queued": 1}, 2, "it asks for no more than there are places")
    # Admitted to it all the same, as by a claim whose place another process was faster to take.
    (admitted,) = admit(replica_driver(row), Envelope(1))
    assert admitted.run == runs[0]
    eventually(lambda: instance.snapshot().waiting, 10)
    eventually(lambda: states(runs) == {"queued": 1}, 15)
    run = Run.objects.get(pk=runs[0])
    assert (run.tries, run.unstarted, run.started_at) == (0, 0, None)
    assert not Permit.objects.filter(run=run).exists()
    # Long before it would be forgotten by itself (30 s): the process takes its name off the list, in its own time.
    eventually(lambda: not instance.snapshot().waiting, 10)
    occupant.do(do="cancel", run=1)
    eventually(lambda: states(runs) == {"running": 1}, 30)


@pytest.mark.rule("R10", "P8")
def test_an_adopted_container_keeps_its_place(instance: Instance, observer: Observer, fleet: Fleet) -> None:
    victims = {name: fleet.replica(name, **variables(instance, 1))[0] for name in ("one", "two")}
    (run,) = submit(instance, 1)
    eventually(lambda: instance.running() == 1, 60)
    (before,) = instance.snapshot().holders
    maker = Run.objects.get(pk=run).driver_name
    victims[maker].fail("killed")
    eventually(lambda: instance.snapshot().holders[0].owner != before.owner, 25, "another process owns the token")
    (after,) = instance.snapshot().holders
    assert (after.token, after.container_id, after.recovering) == (before.token, before.container_id, False)
    assert Run.objects.get(pk=run).driver_name != maker
    remains(lambda: instance.containers() == {before.container_id: "running"}, 3)
    cancel_runs([run], actor=SYSTEM)
    eventually(lambda: states([run]) == {"cancelled": 1} and not instance.holders(), 30)
    assert Run.objects.get(pk=run).attempt == 1
    assert observer.count("start") == observer.count("create") == 1
