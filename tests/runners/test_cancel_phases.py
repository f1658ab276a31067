"""A cancel in every phase of a run on a real agent: what the database says, what exists, when its place is free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from admission.models import Run
from admission.services.runs import cancel_runs
from controlplane.core.audit import SYSTEM
from runners.agent.agent import LIFE_SIGN_SECONDS
from runners.services.kept import read_kept
from tests import ledger
from tests.physical_docker.conftest import image, instance, observer
from tests.physical_docker.test_replicas import SMALL, variables
from tests.physical_docker.world import Instance, Observer, remains
from tests.runners.agent.proxy import DockerProxy
from tests.runners.test_agent_keeping import Machine
from tests.runners.web import HoldingProxy, Web

__all__ = ["image", "instance", "observer"]

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(170)]

FOREVER = "sleep 600"
DEAF = "trap '' TERM; while :; do sleep 0.1; done"
GRACE = 1.0
HEARD_SECONDS = LIFE_SIGN_SECONDS
"""A full agent asks for nothing, so it hears of a cancel with its next sign of life."""
REMOVAL_SECONDS = 4.0
"""From SIGKILL to the proof that nothing is left, on a busy machine."""


@dataclass
class Stage:
    """One agent of one slot on an instance with one place, and everything that may be held between the parties."""

    tenant: Any
    web: HoldingProxy
    docker: DockerProxy
    instance: Instance
    observer: Observer
    machine: Machine

    def has_heard(self, run: int) -> bool:
        """Whether the agent knows that it is to stop it."""
        return any(event["run"] == run for event in self.machine.named("stopping"))

    def submit(self, script: str, **spec: Any) -> int:
        more: dict[str, Any] = {"image": self.instance.image, "resources": SMALL, "stop_grace_seconds": GRACE, **spec}
        return ledger.submit(self.tenant, command=["sh", "-c", script], **more)[0]

    def cancelled(self, run: int, *, made: bool = True) -> Run:
        """The row, once it says so; by then its container is gone. A place of which nothing was made goes soon."""
        ledger.until(lambda: ledger.state(run) == "cancelled")
        assert not self.instance.containers()
        assert not made or not self.instance.holders()
        ledger.until(lambda: not self.instance.holders())
        row = ledger.run(run)
        assert row.cancel_requested_at is not None
        assert row.cancel_confirmed_at is not None
        return row

    def made(self) -> tuple[int, int]:
        """How many containers were created and started, ever."""
        return self.observer.count("create"), self.observer.count("start")


@pytest.fixture
def stage(web: Web, instance: Instance, observer: Observer, tmp_path: Path) -> Iterator[Stage]:
    line = HoldingProxy(web.port)
    machine = Machine(line, tmp_path)
    with DockerProxy(tmp_path / "proxy.sock") as docker:
        machine.env |= {
            **variables(instance, 1),
            "DOCKER_HOST": f"unix://{tmp_path}/proxy.sock",
            "WHARFINGER_EXECUTOR": "docker",
            "WHARFINGER_RUNNER_SLOTS": "1",
            "CONTROLPLANE_SCRATCH_DIR": str(tmp_path / "scratch"),
        }
        machine.start()
        ledger.until(lambda: machine.named("connected"))
        yield Stage(ledger.make_tenant(1), line, docker, instance, observer, machine)
        line.go()
        docker.refuse = b""
        docker.going.set()
        machine.stop()
    line.close()


def cancel(run: int) -> None:
    cancel_runs([run], actor=SYSTEM)


def before_the_claims_answer(stage: Stage) -> None:
    """Admitted, and the agent does not know of it: it is never started, and nothing is made for it."""
    stage.web.hold(answer=b'"job_token"')
    run = stage.submit(FOREVER)
    ledger.until(lambda: stage.web.held)
    assert ledger.state(run) == "admitted"
    cancel(run)
    assert ledger.state(run) == "admitted"
    stage.web.go()
    assert stage.cancelled(run, made=False).started_at is None


def before_the_starts_answer(stage: Stage) -> None:
    """Started in the database, and the agent has not heard that it may: nothing is made."""
    stage.web.hold(answer=b'"verdict":"ok"')
    run = stage.submit(FOREVER)
    ledger.until(lambda: stage.web.held)
    assert ledger.state(run) == "running"
    cancel(run)
    ledger.until(lambda: stage.has_heard(run))
    assert ledger.state(run) == "running"
    stage.web.go()
    assert stage.cancelled(run, made=False).started_at is not None


def during_the_create(stage: Stage, made: tuple[int, int]) -> None:
    """The daemon has made it and does not say so: it is not started, and its place is taken until it is removed."""
    stage.docker.hold_reply = b"/containers/create"
    run = stage.submit(FOREVER)
    ledger.until(stage.instance.containers)
    cancel(run)
    ledger.until(lambda: stage.has_heard(run))
    assert (ledger.state(run), stage.instance.holders()) == ("running", 1)
    stage.docker.going.set()
    stage.cancelled(run)
    assert stage.made() == (made[0] + 1, made[1])


def while_it_runs(stage: Stage) -> None:
    """Deaf to SIGTERM: it has its grace, and is gone right after it."""
    run = stage.submit(DEAF)
    ledger.until(lambda: stage.instance.running() == 1)
    cancel(run)
    asked = stage.cancelled(run).cancel_requested_at
    assert asked is not None
    (destroyed,) = [at for at, action, _ in sorted(stage.observer.log)[-1:] if action == "destroy"]
    assert GRACE <= destroyed / 1e9 - asked.timestamp() < HEARD_SECONDS + GRACE + REMOVAL_SECONDS


def while_it_cannot_be_removed(stage: Stage) -> None:
    """Neither settled nor replaced before the removal is confirmed."""
    run = stage.submit("exec " + FOREVER, stop_grace_seconds=0)
    ledger.until(lambda: stage.instance.running() == 1)
    (old,) = stage.instance.containers()
    stage.docker.refuse = b"DELETE /"
    cancel(run)
    following = stage.submit("true")
    ledger.until(lambda: stage.instance.containers() == {old: "exited"})
    remains(lambda: (ledger.state(run), ledger.state(following)) == ("running", "queued"))
    assert (stage.instance.holders(), ledger.in_flight(stage.tenant)) == (1, 1)
    stage.docker.refuse = b""
    ledger.until(lambda: ledger.state(following) == "succeeded")
    assert ledger.state(run) == "cancelled"
    gone, starts = stage.observer.when("destroy", old), [at for at, a, _ in stage.observer.log if a == "create"]
    assert gone is not None
    assert gone < max(starts)


def while_it_uploads(stage: Stage) -> None:
    """It has ended by itself before anybody could stop it: its result and its file stand."""
    stage.web.hold(request=b"/artifacts?")
    run = stage.submit("echo whole > kept", artifacts=["kept"])
    ledger.until(lambda: stage.web.held)
    assert not stage.instance.containers()
    cancel(run)
    ledger.until(lambda: stage.has_heard(run))
    assert ledger.state(run) == "running"
    stage.web.go()
    ledger.until(lambda: ledger.run(run).finished_at)
    row = ledger.run(run)
    assert (row.state, row.exit_code, row.cancel_requested_at is None) == ("succeeded", 0, False)
    assert [(one.name, one.size) for one in read_kept(run).files] == [("kept", 6)]


@pytest.mark.rule("Q9", "A9", "P6", "P8", "P13")
def test_a_cancel_in_every_phase_leaves_the_right_state_and_no_container(stage: Stage) -> None:
    before_the_claims_answer(stage)
    before_the_starts_answer(stage)
    assert stage.made() == (0, 0)
    during_the_create(stage, stage.made())
    while_it_runs(stage)
    while_it_cannot_be_removed(stage)
    while_it_uploads(stage)
    assert stage.observer.peak("create", "destroy") == 1
    assert set(Run.objects.values_list("attempt", flat=True)) == {1}
    ledger.assert_conserved()
