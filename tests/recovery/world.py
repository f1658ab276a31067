"""Real `manage.py replica` processes with the product's windows scaled down, work that keeps a journal, and judges."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from django.utils import timezone

from admission.models import Attempt, Run, Tenant
from recovery.models import RecoveryAction, Replica
from recovery.services.replicas import replica_driver
from tests import ledger
from tests.fencing import world as fencing
from tests.fencing.world import arguments_of, processes, start_process

ROOT = Path(__file__).resolve().parents[2]

FULL = {
    "heartbeat_interval_seconds": 10.0,
    "replica_stale_seconds": 90.0,
    "recovery_interval_seconds": 60.0,
    "recovery_claim_ttl_seconds": 300.0,
}
"""As delivered. Tests shorten all alike: the proportion is what they are about."""

SMALL = 0.06
# What a machine that has nothing else to do adds to a bound.
SLACK_SECONDS = 3.0
# What one adds that runs the whole suite besides: there, a fact is waited for, and how soon it came is not judged.
PATIENT_SECONDS = 180.0

JOURNAL = (
    "import sys, time\n"
    "def note(what):\n"
    "    try:\n"
    "        with open(sys.argv[1], 'a') as f: f.write(f'{what} {sys.argv[2]} {time.time()}\\n')\n"
    "    except OSError: pass\n"  # in a container the journal is not to be seen
    "note('start'); time.sleep(float(sys.argv[3])); note('end')\n"
)


def until(true: Callable[[], Any], explain: Callable[[], str] = lambda: "", seconds: float = PATIENT_SECONDS) -> Any:
    """Wait for a fact, as long as a busy machine may need; `explain` is printed where it never comes."""
    return fencing.until(true, explain, seconds)


def windows(scale: float) -> dict[str, float]:
    """The four windows of recovery, and what else a fleet of a test needs to be quick."""
    quick = {"sweep_interval_seconds": 0.5, "reap_interval_seconds": 1.0, "drain_seconds": 1.0}
    return {**{name: value * scale for name, value in FULL.items()}, **quick}


@dataclass
class Member:
    """One process; its name is used once, so that it names one incarnation (or, after a pause, its successors)."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    killed_at: float = 0.0

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        self.killed_at = time.time()
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        self.process.send_signal(signal.SIGCONT)


@dataclass
class Fleet:
    """Processes on one database; leaves none behind."""

    scale: float = SMALL
    executor: str = "process"
    members: list[Member] = field(default_factory=list)
    mark: str = field(default_factory=lambda: f"recovery-{uuid4().hex}")
    # Outside pytest's, which is closed to the users that runs have: they must get to their files and the journal.
    directory: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="wharfinger-recovery.")))

    def __enter__(self) -> Self:
        self.directory.chmod(0o711)
        self.journal.touch(0o666)
        self.journal.chmod(0o666)
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            if member.process.poll() is None:
                with suppress(ProcessLookupError):
                    member.wake()
                    member.process.terminate()
        for member in self.members:
            with suppress(subprocess.TimeoutExpired):
                member.process.wait(15)
            if member.process.poll() is None:
                member.process.kill()
                member.process.wait()
        shutil.rmtree(self.directory)

    @property
    def journal(self) -> Path:
        return self.directory / f"{self.mark}.journal"

    def environment(self, **extra: str) -> dict[str, str]:
        values = {f"CONTROLPLANE_{name.upper()}": str(value) for name, value in windows(self.scale).items()}
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("CONTROLPLANE_")},
            **values,
            "DATABASE_URL": ledger.application_url(),
            "SECRET_KEY": "a secret of the tests",
            "CONTROLPLANE_EXECUTOR": self.executor,
            "CONTROLPLANE_SCRATCH_DIR": str(self.directory / "scratch"),
            **extra,
        }

    def replica(self, *, slots: int = 8, wait: bool = True, name: str = "", **extra: str) -> Member:
        name = name or f"{self.mark}-{len(self.members)}"
        log = self.directory / f"{name}.{len(self.members)}.log"
        env = self.environment(CONTROLPLANE_REPLICA_SLOTS=str(slots), **extra)
        member = Member(name, start_process(["manage.py", "replica", "--id", name], env, log).process, log)
        self.members.append(member)
        if wait:
            self.until_living(member)
        return member

    def until_living(self, member: Member) -> Replica:
        def look() -> Replica | None:
            assert member.process.poll() is None, member.text()[-3000:]
            return Replica.objects.filter(name=member.name, declared_dead_at__isnull=True).first()

        row: Replica = until(look, member.text)
        return row

    def recover(self, *options: str, **extra: str) -> subprocess.CompletedProcess[str]:
        """`manage.py recover`, by hand."""
        return subprocess.run(
            [sys.executable, "manage.py", "recover", *options],
            cwd=ROOT,
            env=self.environment(**extra),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def submit(self, tenant: Tenant, seconds: Iterable[float], image: str = "", **spec: Any) -> list[int]:
        """Runs that note their start and their end in the journal, by the number they have here."""
        return [
            run
            for number, length in enumerate(seconds)
            for run in ledger.submit(
                tenant,
                1,
                command=["python", "-c", JOURNAL, str(self.journal), f"{tenant.slug}.{number}", str(length)],
                resources={"memory_mib": 64, "cpu": 0.05},
                **({"image": image} if image else {}),
                retry={"max_attempts": 20, "backoff_seconds": 0},
                **spec,
            )
        ]

    def executing(self) -> int:
        """Processes, or containers in any state, of this fleet's runs that exist now, whoever made them."""
        if self.executor == "docker":
            listed = subprocess.run(
                ["docker", "ps", "-a", "--no-trunc", "--format", "{{.Command}}"], capture_output=True, check=True
            )
            return listed.stdout.count(self.mark.encode())
        journal = str(self.journal).encode()
        return sum(journal in arguments_of(process) for process in processes())


def busiest(members: list[Member]) -> Member | None:
    """The one that executes most; None: nobody executes anything."""
    held = {m.name: Run.objects.filter(driver_name=m.name, state="running").count() for m in members}
    most = max(members, key=lambda m: held[m.name])
    return most if held[most.name] else None


def all_ended(runs: list[int]) -> bool:
    return not Run.objects.filter(pk__in=runs, state__in=("queued", "admitted", "running")).exists()


def assert_each_ended_exactly_once(runs: list[int]) -> None:
    """One ending per run, and no attempt after the one that succeeded."""
    assert set(Run.objects.filter(pk__in=runs).values_list("state", flat=True)) == {"succeeded"}
    for run in runs:
        attempts = list(Attempt.objects.filter(run=run).order_by("number"))
        assert [a.ending for a in attempts].count("succeeded") == 1, run
        assert attempts[-1].ending == "succeeded", run
        assert all(a.released_at is not None for a in attempts), run


def assert_nothing_started_after_its_success(fleet: Fleet, runs: list[int]) -> None:
    """By what the runs themselves wrote: no start of a run whose success stood in the ledger already."""
    ended = dict(Attempt.objects.filter(run__in=runs, ending="succeeded").values_list("run_id", "released_at"))
    specs = dict(Run.objects.filter(pk__in=runs).values_list("spec__command__4", "pk"))
    for line in fleet.journal.read_text().splitlines():
        what, number, moment = line.split()
        if what == "start":
            assert float(moment) <= ended[specs[number]].timestamp(), line


def most_at_once(tenant: Tenant) -> int:
    """The highest concurrency that a tenant ever had, from the exact history (rule A30)."""
    changes: list[tuple[datetime, int]] = []
    for admitted, released in Attempt.objects.filter(tenant=tenant).values_list("admitted_at", "released_at"):
        changes += [(admitted, 1), (released, -1)]
    held = most = 0
    # A slot that was freed and taken at the same microsecond was freed first.
    for _, change in sorted(changes, key=lambda c: (c[0], c[1])):
        held += change
        most = max(most, held)
    return most


def settled_after(fleet: Fleet) -> Iterator[tuple[str, float]]:
    """For each killed member that left orphans: how long after its death the last one was settled."""
    for member in fleet.members:
        last = RecoveryAction.objects.filter(replica_name=member.name, run_id__isnull=False).order_by("-at").first()
        if member.killed_at and last is not None:
            yield member.name, last.at.timestamp() - member.killed_at


def dead_replica(tenant: Tenant, count: int, *, machine: str = "another") -> tuple[Replica, list[int]]:
    """A replica that fell silent long ago with so many running runs."""
    dead = ledger.make_replica(executor="process", machine=machine)
    driver = replica_driver(dead)
    ledger.submit(tenant, count, command=["true"], retry={"max_attempts": 5, "backoff_seconds": 0})
    held = []
    # Living replicas of the test may get some of them first: those are not its orphans.
    while admitted := ledger.admit_all(driver):
        held += ledger.start(driver, admitted)
    Replica.objects.filter(pk=dead.pk).update(beat_at=timezone.now() - timedelta(hours=1))
    return dead, [run for run, _ in held]
