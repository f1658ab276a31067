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

# Silence is death after 4.8 s.
SCALE = 0.6
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

    def restart(self, name: str, **env: str) -> tuple[Victim, Replica]:
        """Under the same pinned id; its row is another."""
        victim, _ = self.fleet.replica(name, **env)
        found = Replica.objects.filter(name=name, pid=victim.process.pid)
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
    settings.CONTROLPLANE = control_plane("off", SCALE)
    adapter = DockerAdapter()
    with Fleet(tmp_path, "off", "docker", SCALE) as fleet:
        yield World(fleet, make_tenant(8), local_image, adapter)
    adapter.close()


@pytest.mark.rule("R3", "R9", "A28", "P7")
def test_a_restart_under_the_same_pinned_id_goes_on_with_whatever_its_predecessors_left(world: World) -> None:
    """Every state in which a container may be found; more to adopt than there are slots; an heir killed as well."""
    runs = {
        "runs on": world.submit(300),
        "exits unseen": world.submit(70, code=3),
        "overruns unseen": world.submit(90, timeout_seconds=8),
        "overruns later": world.submit(900, timeout_seconds=25, stop_grace_seconds=0.5),
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

    heir, heir_row = world.restart("pinned", CONTROLPLANE_REPLICA_SLOTS="2")
    until(lambda: RecoveryAction.objects.filter(outcome="adopted").count() == 5, heir.text)
    assert not Attempt.objects.filter(run__in=runs.values(), number=2).exists(), "beyond its slots it claims nothing"
    heir.fail("killed")
    heir.end()
    successor, row = world.restart("pinned")
    world.all_ended(list(runs.values()), successor)

    assert_undisturbed(runs["runs on"], 300, successor)
    for name in ("never started", "is gone"):
        again = ledger.run(runs[name])
        assert (again.state, again.attempt, log_of(runs[name])) == ("succeeded", 2, expected(60)), name
    failed = ledger.run(runs["exits unseen"])
    assert (failed.state, failed.attempt, failed.exit_code) == ("failed", 1, 3)
    assert log_of(failed.pk) == expected(70)
    late = ledger.run(runs["overruns unseen"])
    assert (late.state, late.attempt, log_of(late.pk)) == ("timed_out", 1, expected(90))
    assert_ended_by_its_deadline(ledger.run(runs["overruns later"]), 25)
    cancelled = ledger.run(runs["is cancelled"])
    times = [cancelled.cancel_requested_at, cancelled.cancel_seen_at, cancelled.cancel_confirmed_at]
    assert (cancelled.state, cancelled.attempt) == ("cancelled", 1)
    assert times == sorted(t for t in times if t is not None)
    [attempt] = ledger.attempts(runs["runs on"])
    assert (attempt.driver_id, attempt.maker, ledger.run(runs["runs on"]).epoch) == (row.pk, dead.incarnation, 3)
    gone = Replica.objects.filter(pk__in=[dead.pk, heir_row.pk])
    assert not gone.exists(), "their rows go when nothing of them is left"


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
def test_of_two_others_on_the_daemon_one_goes_on_with_all_that_a_killed_replica_executed(world: World) -> None:
    victim, dead = world.replica("victim")
    runs = [world.submit(220) for _ in range(2)]
    world.until_heard(runs, victim)
    others = [world.replica(name) for name in ("one", "other")]
    victim.fail("killed")
    world.all_ended(runs, others[0][0])
    drivers = {attempt.driver_id for run in runs for attempt in ledger.attempts(run)}
    assert len(drivers) == 1, "who claims the dead goes on with all of it"
    assert drivers <= {row.pk for _, row in others}
    for run in runs:
        assert_undisturbed(run, 220, others[0][0])
        assert ledger.run(run).epoch == 2
    assert not Replica.objects.filter(pk=dead.pk).exists()


@pytest.mark.rule("R12", "G7")
@pytest.mark.parametrize("proof", [pytest.param("it is silent", marks=pytest.mark.soak), "it is taken for gone"])
def test_a_paused_replica_is_not_adopted_from_and_lets_go_of_what_was_adopted_all_the_same(
    proof: str, world: World
) -> None:
    """Silent: its run is executed again, it stops its own. Wrongly proven gone: it leaves what goes on elsewhere."""
    wrongly = proof == "it is taken for gone"
    paused, row = world.replica("paused")
    run = world.submit(180)
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
    until(lambda: "replica.remains_gone" in paused.text(), paused.text)
    assert paused.alive(), "it goes on as another incarnation"
    assert ledger.state(run) == "running"
    assert len(world.containers()) == 1, "stopped what had moved on, and only that"
    world.all_ended([run], other)
    assert (ledger.state(run), ledger.run(run).attempt) == ("succeeded", attempt), other.text()
    assert log_of(run) == expected(180)
