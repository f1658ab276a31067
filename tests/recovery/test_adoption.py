"""Replicas killed while their containers run: a successor on the daemon goes on with them, nothing lost (rule R10)."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from admission.models import Attempt, Run, Tenant
from admission.services.runs import cancel_runs
from controlplane.core.audit import SYSTEM
from recovery.models import RecoveryAction, Replica
from recovery.replica.executor import LABEL_DRIVER
from runners.agent.executors.docker_adapter import DockerAdapter, Listed
from runners.agent.executors.docker_sweep import remove_confirmed
from runners.services.logs import read_log
from tests import ledger
from tests.fencing.world import Fleet, Victim, control_plane, until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.rule("R10"),
    pytest.mark.timeout(180),
    pytest.mark.xdist_group("adoption"),
]

PRINTS = (
    "import sys, time\n"
    "for i in range(int(sys.argv[1])):\n"
    "    print(f'line {i:06d} ' + 'x' * (i * 7 % 300), flush=True)\n"
    "    time.sleep(0.1)\n"
    "sys.exit(int(sys.argv[2]))\n"
)


def expected(lines: int) -> bytes:
    return "".join(f"line {i:06d} {'x' * (i * 7 % 300)}\n" for i in range(lines)).encode()


class World:
    """A fleet on the real daemon, and what its replicas make there."""

    def __init__(self, fleet: Fleet, tenant: Tenant, image: str, adapter: DockerAdapter) -> None:
        self.fleet, self.tenant, self.image, self.adapter = fleet, tenant, image, adapter
        self._rows: list[Replica] = []

    def replica(self, name: str, **env: str) -> tuple[Victim, Replica]:
        made = self.fleet.replica(name, **env)
        self._rows.append(made[1])
        return made

    def restart(self, name: str, before: Replica, **env: str) -> tuple[Victim, Replica]:
        """Under the same pinned id; its row is another."""
        victim, _ = self.fleet.replica(name, **env)
        found = Replica.objects.filter(name=name).exclude(pk=before.pk)
        row: Replica = until(lambda: victim.alive() and found.first(), victim.text)
        self._rows.append(row)
        return victim, row

    def submit(self, lines: int, code: int = 0, **spec: Any) -> int:
        """Prints a line each tenth of a second."""
        command = ["python", "-c", PRINTS, str(lines), str(code)]
        body = {"image": self.image, "backend": "docker", "retry": {"backoff_seconds": 0}, **spec}
        body.setdefault("resources", {"memory_mib": 64, "cpu": 0.2})
        [run] = ledger.submit(self.tenant, 1, command=command, **body)
        return run

    def until_heard(self, runs: list[int], victim: Victim) -> None:
        """Each has output that is stored already."""
        until(lambda: all(len(log_of(run)) > 100 for run in runs), victim.text)

    def containers(self, **labels: str) -> list[Listed]:
        """Of all replicas here, with these labels, in any state."""
        by = [{LABEL_DRIVER: str(row.incarnation), **labels} for row in self._rows]
        return [listed for wanted in by for listed in self.adapter.list_containers(wanted)]

    def container(self, run: int) -> Listed:
        [listed] = self.containers(**{"wharfinger.run": str(run)})
        return listed

    def all_ended(self, runs: list[int], successor: Victim) -> list[Run]:
        until(lambda: all(ledger.run(run).finished_at for run in runs), successor.text)
        until(lambda: not self.containers(), successor.text)
        ledger.assert_conserved()
        return [ledger.run(run) for run in runs]


def log_of(run: int, attempt: int | None = None) -> bytes:
    return read_log(run, attempt=attempt).data


def assert_undisturbed(run: int, lines: int, successor: Victim) -> None:
    row = ledger.run(run)
    assert (row.state, row.attempt, row.tries, row.exit_code) == ("succeeded", 1, 1, 0), successor.text()
    assert log_of(run) == expected(lines)


@pytest.fixture
def world(tmp_path: Path, settings: Any, make_tenant: Callable[..., Tenant], local_image: str) -> Iterator[World]:
    settings.CONTROLPLANE = control_plane("off")
    adapter = DockerAdapter()
    with Fleet(tmp_path, "off", "docker") as fleet:
        yield World(fleet, make_tenant(8), local_image, adapter)
    adapter.close()


@pytest.mark.rule("R3", "R9", "A28", "P7")
def test_a_restart_under_the_same_pinned_id_goes_on_with_whatever_its_predecessor_left(world: World) -> None:
    """One kill, every state in which a container may be found; and more to adopt than the successor has slots."""
    runs = {
        "runs on": world.submit(240),
        "exits unseen": world.submit(70, code=3),
        "overruns unseen": world.submit(90, timeout_seconds=8),
        "overruns later": world.submit(900, timeout_seconds=20, stop_grace_seconds=0.5),
        "is cancelled": world.submit(900, stop_grace_seconds=0.5),
        "never started": world.submit(60),
        "is gone": world.submit(60),
    }
    victim, dead = world.replica("pinned", CONTROLPLANE_REPLICA_SLOTS="8")
    world.until_heard(list(runs.values()), victim)
    victim.fail("killed")
    victim.end()
    unlike_created(world, runs["never started"])
    remove_confirmed(world.adapter, world.container(runs["is gone"]).id)
    cancel_runs([runs["is cancelled"]], actor=SYSTEM, reason="while nobody drives it")
    unseen = [runs["exits unseen"], runs["overruns unseen"]]
    until(lambda: {world.container(run).state for run in unseen} == {"exited"})

    successor, row = world.restart("pinned", dead, CONTROLPLANE_REPLICA_SLOTS="2")
    until(lambda: RecoveryAction.objects.filter(outcome="adopted").count() == 5, successor.text)
    assert not Attempt.objects.filter(run__in=runs.values(), number=2).exists(), "beyond its slots it claims nothing"
    world.all_ended(list(runs.values()), successor)

    assert_undisturbed(runs["runs on"], 240, successor)
    for name in ("never started", "is gone"):
        again = ledger.run(runs[name])
        assert (again.state, again.attempt, log_of(runs[name])) == ("succeeded", 2, expected(60)), name
    failed = ledger.run(runs["exits unseen"])
    assert (failed.state, failed.attempt, failed.exit_code) == ("failed", 1, 3)
    assert log_of(failed.pk) == expected(70)
    late = ledger.run(runs["overruns unseen"])
    assert (late.state, late.attempt, log_of(late.pk)) == ("timed_out", 1, expected(90))
    assert_ended_by_its_deadline(ledger.run(runs["overruns later"]), 20)
    cancelled = ledger.run(runs["is cancelled"])
    times = [cancelled.cancel_requested_at, cancelled.cancel_seen_at, cancelled.cancel_confirmed_at]
    assert (cancelled.state, cancelled.attempt) == ("cancelled", 1)
    assert times == sorted(t for t in times if t is not None)
    assert row.pk in {a.driver_id for a in ledger.attempts(runs["runs on"])}
    assert not Replica.objects.filter(pk=dead.pk).exists(), "its row goes when nothing of it is left"


def unlike_created(world: World, run: int) -> None:
    """As if the kill had come between the create and the start: the same container, never started."""
    there = world.container(run)
    remove_confirmed(world.adapter, there.id)
    world.adapter.create(there.name, {"Image": world.image, "Cmd": ["true"], "Labels": dict(there.labels)})
    assert world.container(run).state == "created"


def assert_ended_by_its_deadline(run: Run, timeout: float) -> None:
    assert (run.state, run.attempt) == ("timed_out", 1)
    assert run.started_at is not None
    assert run.finished_at is not None
    lasted = (run.finished_at - run.started_at).total_seconds()
    assert timeout - 0.5 <= lasted < timeout + 6, "counted from its start, not from its adoption"


@pytest.mark.rule("R6", "R8")
def test_of_two_others_on_the_daemon_one_goes_on_with_each_run_and_its_own_death_is_outlived_too(world: World) -> None:
    victim, dead = world.replica("victim")
    runs = [world.submit(450) for _ in range(2)]
    world.until_heard(runs, victim)
    others = {row.pk: process for process, row in (world.replica("one"), world.replica("other"))}
    victim.fail("killed")

    def driver() -> int | None:
        drivers = set(Run.objects.filter(pk__in=runs, epoch=2).values_list("driver_id", flat=True))
        return drivers.pop() if len(drivers) == 1 else None

    adopter = until(driver, lambda: "".join(process.text() for process in others.values()))
    heir = others.pop(adopter)
    assert Run.objects.filter(pk__in=runs, driver_id=adopter).count() == 2, "who claims the dead adopts all of it"
    heir.fail("killed")
    [last] = others.values()
    world.all_ended(runs, last)
    for run in runs:
        assert_undisturbed(run, 450, last)
        assert ledger.run(run).epoch == 3
    assert dead.pk not in others


@pytest.mark.rule("R12", "G7")
@pytest.mark.parametrize("proof", ["it is silent", "it is taken for gone"])
def test_a_paused_replica_is_not_adopted_from_and_lets_go_of_what_was_adopted_all_the_same(
    proof: str, world: World
) -> None:
    """Silent: its run is executed again, and it stops its own. Wrongly proven gone: it leaves what goes on elsewhere."""
    wrongly = proof == "it is taken for gone"
    paused, row = world.replica("paused")
    run = world.submit(300 if wrongly else 100)
    world.until_heard([run], paused)
    other, other_row = world.replica("other")
    if wrongly:
        Replica.objects.filter(pk=row.pk).update(pid_start=1)
    paused.fail("paused")
    until(lambda: ledger.run(run).driver_id == other_row.pk, other.text)
    attempt = 1 if wrongly else 2
    assert ledger.run(run).attempt == attempt
    assert [c.state for c in world.containers(**{"wharfinger.attempt": "1"})] == ["running"], "its own to stop"
    paused.process.send_signal(signal.SIGCONT)
    assert paused.process.wait(60) == 75, paused.text()
    assert ledger.state(run) == "running"
    assert len(world.containers()) == 1, "stopped what had moved on, and only that"
    world.all_ended([run], other)
    assert (ledger.state(run), ledger.run(run).attempt) == ("succeeded", attempt), other.text()
    assert log_of(run) == expected(300 if wrongly else 100)
