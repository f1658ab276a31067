"""Replicas killed while their containers run: a successor on the daemon goes on with them, nothing lost (rule R10)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from admission.models import Run, Tenant
from recovery.models import Replica
from recovery.replica.executor import LABEL_DRIVER
from runners.agent.executors.docker_adapter import DockerAdapter, Listed
from runners.services.logs import read_log
from tests import ledger
from tests.fencing.world import Fleet, Victim, control_plane, running, until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.rule("R10"),
    pytest.mark.timeout(180),
    pytest.mark.xdist_group("adoption"),
]

LINES = 40
STEP_SECONDS = 0.1
PRINTS = (
    "import sys, time\n"
    "lines, step, code = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])\n"
    "for i in range(lines):\n"
    "    print(f'line {i:06d} ' + 'x' * (i * 7 % 300), flush=True)\n"
    "    time.sleep(step)\n"
    "sys.exit(code)\n"
)


def expected(lines: int = LINES) -> bytes:
    return "".join(f"line {i:06d} {'x' * (i * 7 % 300)}\n" for i in range(lines)).encode()


class World:
    """A fleet on the real daemon, and what its runs leave there."""

    def __init__(self, fleet: Fleet, tenant: Tenant, image: str, adapter: DockerAdapter) -> None:
        self.fleet, self.tenant, self.image, self.adapter = fleet, tenant, image, adapter

    def submit(self, *, lines: int = LINES, step: float = STEP_SECONDS, code: int = 0, **spec: Any) -> int:
        command = ["python", "-c", PRINTS, str(lines), str(step), str(code)]
        body = {"image": self.image, "backend": "docker", "stop_grace_seconds": 0.5, **spec}
        body.setdefault("resources", {"memory_mib": 64, "cpu": 0.2})
        [run] = ledger.submit(self.tenant, 1, command=command, **body)
        return run

    def until_running(self, run: int, victim: Victim, *, output: int = 0) -> None:
        until(lambda: running([run]) == 1 and len(self.log(run)) > output, victim.text)

    def log(self, run: int, attempt: int | None = None) -> bytes:
        return read_log(run, attempt=attempt).data

    def containers(self, row: Replica) -> list[Listed]:
        return self.adapter.list_containers({LABEL_DRIVER: str(row.incarnation)})

    def ended(self, run: int, successor: Victim) -> Run:
        until(lambda: ledger.run(run).finished_at is not None, successor.text)
        until(lambda: not self.adapter.list_containers({"wharfinger.run": str(run), **self.ours()}), successor.text)
        ledger.assert_conserved()
        return ledger.run(run)

    def ours(self) -> dict[str, str]:
        """This test's containers: of the incarnations that its replicas had."""
        return {}


@pytest.fixture
def world(
    tmp_path: Path, settings: Any, make_tenant: Callable[..., Tenant], local_image: str
) -> Iterator[World]:
    settings.CONTROLPLANE = control_plane("off")
    adapter = DockerAdapter()
    with Fleet(tmp_path, "off", "docker") as fleet:
        yield World(fleet, make_tenant(2), local_image, adapter)
    adapter.close()


@pytest.mark.rule("R3")
def test_a_restart_under_the_same_pinned_id_goes_on_with_what_its_killed_predecessor_executed(world: World) -> None:
    victim, row = world.fleet.replica("pinned")
    run = world.submit()
    world.until_running(run, victim, output=100)
    victim.fail("killed")
    victim.end()
    successor, _ = world.fleet.replica("pinned")
    ended = world.ended(run, successor)
    assert (ended.state, ended.attempt, ended.exit_code, ended.tries) == ("succeeded", 1, 0, 1), successor.text()
    assert world.log(run) == expected()
    assert world.containers(row) == []
