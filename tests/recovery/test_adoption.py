"""Replicas killed while their containers run: a successor on the daemon goes on with them, nothing lost (rule R10)."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from admission.models import Attempt, Run, Tenant
from admission.services.runs import cancel_runs
from controlplane.core.audit import SYSTEM
from recovery.models import RecoveryAction, Replica
from recovery.replica.executor import LABEL_DRIVER
from runners.agent.executors.docker_adapter import DockerAdapter, Listed
from runners.agent.executors.docker_sweep import remove_confirmed
from runners.services.logs import read_log
from tests import ledger
from tests.fencing.world import Fleet, Victim, control_plane
from tests.recovery.world import until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.rule("R10"),
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("adoption"),
]

# Silence is death after 8 s: shorter, and a busy machine has the living declared dead.
SCALE = 1.0
# Ends when it is told to, so that no test depends on how fast this machine is.
PRINTS = (
    "import signal, sys, time\n"
    "told, lines = [], 0\n"
    "signal.signal(signal.SIGUSR1, lambda *_: told.append(1))\n"
    "while not told:\n"
    "    print(f'line {lines:06d} ' + 'x' * (lines * 7 % 300), flush=True)\n"
    "    lines += 1\n"
    "    time.sleep(0.1)\n"
    "print(f'{lines} lines', flush=True)\n"
    "sys.exit(int(sys.argv[1]))\n"
)


def assert_whole(log: bytes) -> None:
    """Each line once, in order, up to the one that says how many there were."""
    count = int(log.splitlines()[-1].split()[0])
    lines = "".join(f"line {i:06d} {'x' * (i * 7 % 300)}\n" for i in range(count))
    assert log == f"{lines}{count} lines\n".encode()


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

    def submit(self, code: int = 0, **spec: Any) -> int:
        """Prints a line each tenth of a second, until it is told to end."""
        command = ["python", "-c", PRINTS, str(code)]
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

    def tell_to_end(self, run: int) -> None:
        self.adapter.kill(self.container(run).id, "SIGUSR1")

    def tell_second_attempts_to_end(self, runs: list[int], driver: Victim) -> None:
        again = {"run__in": runs, "number": 2, "log_size__gt": 100}
        until(lambda: Attempt.objects.filter(**again).count() == len(runs), driver.text)
        for run in runs:
            self.tell_to_end(run)

    def end(self) -> None:
        for listed in self.containers():
            remove_confirmed(self.adapter, listed.id)

    def all_ended(self, runs: list[int], successor: Victim) -> list[Run]:
        until(lambda: all(ledger.run(run).finished_at for run in runs), successor.text)
        until(lambda: not self.containers(), successor.text)
        ledger.assert_conserved()
        return [ledger.run(run) for run in runs]


def log_of(run: int, attempt: int | None = None) -> bytes:
    return read_log(run, attempt=attempt).data


def assert_undisturbed(run: int, successor: Victim) -> None:
    row = ledger.run(run)
    assert (row.state, row.attempt, row.tries, row.exit_code) == ("succeeded", 1, 1, 0), successor.text()
    assert_whole(log_of(run))


@pytest.fixture
def world(tmp_path: Path, settings: Any, make_tenant: Callable[..., Tenant], local_image: str) -> Iterator[World]:
    settings.CONTROLPLANE = control_plane("off", SCALE)
    adapter = DockerAdapter()
    with Fleet(tmp_path, "off", "docker", SCALE) as fleet:
        world = World(fleet, make_tenant(8), local_image, adapter)
        yield world
    world.end()
    adapter.close()


@pytest.mark.rule("R3", "R9", "A28", "P7")
def test_a_restart_under_the_same_pinned_id_goes_on_with_whatever_its_predecessors_left(world: World) -> None:
    """Every state in which a container may be found; more to adopt than there are slots; an heir killed as well."""
    runs = {
        "runs on": world.submit(),
        "exits unseen": world.submit(code=3),
        "is past its time": world.submit(stop_grace_seconds=0.5),
        "is cancelled": world.submit(stop_grace_seconds=0.5),
        "never started": world.submit(),
        "is gone": world.submit(),
    }
    again = [runs["never started"], runs["is gone"]]
    victim, dead = world.replica("pinned", CONTROLPLANE_REPLICA_SLOTS="8")
    world.until_heard(list(runs.values()), victim)
    victim.fail("killed")
    victim.end()
    while_nobody_drives(world, runs)

    heir, heir_row = world.restart("pinned", CONTROLPLANE_REPLICA_SLOTS="2")
    until(lambda: RecoveryAction.objects.filter(outcome="adopted").count() == 4, heir.text)
    assert not Attempt.objects.filter(run__in=again, number=2).exists(), "beyond its slots it claims nothing"
    heir.fail("killed")
    heir.end()
    successor, row = world.restart("pinned")
    until(lambda: ledger.run(runs["runs on"]).driver_id == row.pk, successor.text)
    world.tell_to_end(runs["runs on"])
    world.tell_second_attempts_to_end(again, successor)
    world.all_ended(list(runs.values()), successor)

    assert_undisturbed(runs["runs on"], successor)
    [attempt] = ledger.attempts(runs["runs on"])
    assert (attempt.driver_id, attempt.maker, ledger.run(runs["runs on"]).epoch) == (row.pk, dead.incarnation, 3)
    for name in ("never started", "is gone"):
        retried = ledger.run(runs[name])
        assert (retried.state, retried.attempt) == ("succeeded", 2), name
        assert_whole(log_of(runs[name]))
    failed = ledger.run(runs["exits unseen"])
    assert (failed.state, failed.attempt, failed.exit_code) == ("failed", 1, 3)
    assert_whole(log_of(failed.pk))
    late = ledger.run(runs["is past its time"])
    assert (late.state, late.attempt) == ("timed_out", 1), "its time counts from its start, not from its adoption"
    cancelled = ledger.run(runs["is cancelled"])
    times = [cancelled.cancel_requested_at, cancelled.cancel_seen_at, cancelled.cancel_confirmed_at]
    assert (cancelled.state, cancelled.attempt) == ("cancelled", 1)
    assert times == sorted(t for t in times if t is not None)
    # The rows of the dead go when nothing of them is left, in a later tick.
    until(lambda: not Replica.objects.filter(pk__in=[dead.pk, heir_row.pk]).exists(), successor.text)


def while_nobody_drives(world: World, runs: dict[str, int]) -> None:
    """What may happen to containers and runs between the kill and the restart."""
    created = world.container(runs["never started"])
    remove_confirmed(world.adapter, created.id)
    # As if the kill had come between the create and the start.
    world.adapter.create(created.name, {"Image": world.image, "Cmd": ["true"], "Labels": dict(created.labels)})
    assert world.container(runs["never started"]).state == "created"
    remove_confirmed(world.adapter, world.container(runs["is gone"]).id)
    cancel_runs([runs["is cancelled"]], actor=SYSTEM, reason="while nobody drives it")
    late = Run.objects.filter(pk=runs["is past its time"])
    assert late.update(started_at=timezone.now() - timedelta(seconds=late.get().timeout_seconds - 3)) == 1
    world.tell_to_end(runs["exits unseen"])
    until(lambda: world.container(runs["exits unseen"]).state == "exited")


@pytest.mark.rule("R6", "R8")
def test_of_two_others_on_the_daemon_one_goes_on_with_all_that_a_killed_replica_executed(world: World) -> None:
    victim, dead = world.replica("victim")
    runs = [world.submit() for _ in range(2)]
    world.until_heard(runs, victim)
    others = [world.replica(name) for name in ("one", "other")]
    victim.fail("killed")
    until(lambda: not Run.objects.filter(pk__in=runs, driver_id=dead.pk).exists(), others[0][0].text)
    for run in runs:
        world.tell_to_end(run)
    world.all_ended(runs, others[0][0])
    drivers = {attempt.driver_id for run in runs for attempt in ledger.attempts(run)}
    assert len(drivers) == 1, "who claims the dead goes on with all of it"
    assert drivers <= {row.pk for _, row in others}
    for run in runs:
        assert_undisturbed(run, others[0][0])
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
    run = world.submit()
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
    until(lambda: "run.let_go" in paused.text() or "run.superseded" in paused.text(), paused.text)
    until(lambda: [c.labels["wharfinger.attempt"] for c in world.containers()] == [str(attempt)], paused.text)
    ledger.holds_for(10, lambda: ledger.state(run) == "running", lambda: time.sleep(0.1))
    assert [c.state for c in world.containers()] == ["running"], "stopped what had moved on, and only that"
    world.tell_to_end(run)
    world.all_ended([run], other)
    assert (ledger.state(run), ledger.run(run).attempt) == ("succeeded", attempt), other.text()
    assert_whole(log_of(run))
