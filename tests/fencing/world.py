"""Drivers as real processes with windows of a few seconds, faults for them, and an observer of what they execute."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from django.conf import settings as django_settings

from admission.models import Attempt, Run
from recovery.models import Replica
from runners.agent.executors.docker_adapter import DockerAdapter
from tests import ledger

ROOT = Path(__file__).resolve().parents[2]

# Everything scaled alike: strict leaves 8 - 2.5 - 0.1 - 1 = 4.4 s, more than eight beats.
WINDOWS = {
    "heartbeat_interval_seconds": 0.5,
    "replica_stale_seconds": 8.0,
    "recovery_interval_seconds": 1.0,
    "recovery_claim_ttl_seconds": 5.0,
    "permit_renew_seconds": 5.0,
    "permit_lapse_seconds": 60.0,
    "reap_interval_seconds": 1.0,
    "runner_lease_seconds": 8.0,
    "runner_heartbeat_seconds": 0.5,
    "fence_stop_seconds": 2.5,
    "fence_drift_seconds": 0.1,
    "sweep_interval_seconds": 0.5,
}
PATIENCE_SECONDS = 60.0
BOOT_SECONDS = 150.0
"""A machine with ten other loads needs more than a minute to start a replica."""


def control_plane(fence: str, scale: float = 1.0) -> dict[str, Any]:
    """The settings of this process, with the windows of these tests."""
    return {**django_settings.CONTROLPLANE, "fence": fence, **{name: v * scale for name, v in WINDOWS.items()}}


def environment(fence: str, database: str, executor: str, scratch: Path, scale: float = 1.0) -> dict[str, str]:
    """The same for a process of its own."""
    values = {f"CONTROLPLANE_{name.upper()}": str(value * scale) for name, value in WINDOWS.items()}
    return {
        **os.environ,
        **values,
        "DATABASE_URL": database,
        "SECRET_KEY": "a secret of the tests",
        "CONTROLPLANE_FENCE": fence,
        "CONTROLPLANE_EXECUTOR": executor,
        "CONTROLPLANE_SCRATCH_DIR": str(scratch),
        "CONTROLPLANE_REPLICA_SLOTS": "4",
    }


class Link:
    """A TCP connection that can be cut as a partition cuts it: nothing is refused, nothing arrives any more."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._cut = threading.Event()
        self._closed = threading.Event()
        self._sockets: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        for one in (self._server, *self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def cut(self) -> None:
        self._cut.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near = self._server.accept()[0]
                far = socket.create_connection(self._target)
                self._sockets += [near, far]
                threading.Thread(target=self._pump, args=(near, far), daemon=True).start()

    def _pump(self, near: socket.socket, far: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            while not self._closed.is_set():
                for ready in select.select([near, far], [], [], 0.05)[0]:
                    if self._cut.is_set():
                        self._closed.wait()
                        return
                    data = ready.recv(1 << 16)
                    if not data:
                        near.close()
                        far.close()
                        return
                    (far if ready is near else near).sendall(data)


@dataclass
class Victim:
    """A driver's process, in a group of its own."""

    process: subprocess.Popen[bytes]
    log: Path
    link: Link | None = None

    def fail(self, how: str) -> None:
        if how == "cut off":
            assert self.link is not None
            self.link.cut()
        else:
            self.process.send_signal({"killed": signal.SIGKILL, "paused": signal.SIGSTOP}[how])

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def alive(self) -> bool:
        assert self.process.poll() is None, self.text()
        return True

    def text(self) -> str:
        return self.log.read_text(errors="replace")


def start_process(arguments: list[str], env: dict[str, str], log: Path, link: Link | None = None) -> Victim:
    with log.open("wb") as file:
        process = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, env=env, stdout=file, stderr=file)
    return Victim(process, log, link)


class Fleet:
    """Starts drivers on this test's database, and ends them all."""

    def __init__(self, directory: Path, fence: str, executor: str, scale: float = 1.0) -> None:
        self.directory = directory
        self.fence = fence
        self.executor = executor
        self.scale = scale
        self.scratch = directory / "scratch"
        # Other users' runs must get through to their directories.
        for place in (directory, *list(directory.parents)[:2]):
            place.chmod(0o711)
        self._ends: list[Callable[[], object]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for end in reversed(self._ends):
            end()

    def replica(self, name: str, *, through: bool = False, **env: str) -> tuple[Victim, Replica]:
        """A replica that beats; `through` a link of its own."""
        url, link = ledger.database_url(), None
        if through:
            host, port = url.partition("@")[2].partition("/")[0].split(":")
            link = self.link(host, int(port))
            url = url.replace(f"{host}:{port}", f"127.0.0.1:{link.port}")
        made = {**environment(self.fence, url, self.executor, self.scratch, self.scale), **env}
        victim = start_process(["manage.py", "replica", "--id", name], made, self.directory / f"{name}.log", link)
        self._ends.append(victim.end)
        found = Replica.objects.filter(name=name)
        row = until(lambda: victim.alive() and found.first(), victim.text, BOOT_SECONDS)
        return victim, row

    def link(self, host: str, port: int) -> Link:
        link = Link(host, port)
        self._ends.append(link.__exit__)
        return link

    def agent(self, url: str, token: str) -> Victim:
        """A runner's agent over a link of its own."""
        host, port = url.partition("//")[2].split(":")
        link = self.link(host, int(port))
        env = environment(self.fence, "postgresql://nobody@127.0.0.1:1/none", self.executor, self.scratch)
        code = (
            "import sys, logging; logging.basicConfig(level=20)\n"
            "from runners.agent.agent import Agent, AgentSettings\n"
            "from runners.cli.runner import make_executor\n"
            "make = lambda: make_executor(sys.argv[3], {})\n"
            "sys.exit(Agent(sys.argv[1], sys.argv[2], make, AgentSettings(slots=4)).run())\n"
        )
        arguments = ["-c", code, f"http://127.0.0.1:{link.port}", token, self.executor]
        victim = start_process(arguments, env, self.directory / "agent.log", link)
        self._ends.append(victim.end)
        return victim


@dataclass
class Work:
    """Runs that execute until they are stopped, and can be told from all others on this machine."""

    mark: str = field(default_factory=lambda: f"fencing-{uuid4().hex}")

    def submit(self, tenant: Any, count: int, image: str = "", **spec: Any) -> list[int]:
        command = ["python", "-c", "import time; time.sleep(600)", self.mark]
        extra = {"image": image} if image else {}
        resources = {"memory_mib": 64, "cpu": 0.1}
        return ledger.submit(tenant, count, command=command, labels={}, resources=resources, **extra, **spec)


class Observer:
    """Looks again and again what exists, from outside: `docker ps -a` by label, or the processes of this machine."""

    def __init__(self, executor: str, mark: str, labels: dict[str, str]) -> None:
        self._adapter = DockerAdapter() if executor == "docker" else None
        self._mark = mark.encode()
        self.labels = labels
        self.count = 0
        self.peak = 0
        self.last_seen = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            # Before the look: what is seen existed then or later.
            moment = time.time()
            self.count = self._look()
            self.peak = max(self.peak, self.count)
            if self.count:
                self.last_seen = moment

    def _look(self) -> int:
        if self._adapter is not None:
            return len(self._adapter.list_ids(self.labels))
        return sum(self._mark in arguments_of(process) for process in processes())


def processes() -> Iterator[Path]:
    return Path("/proc").glob("[0-9]*")


def arguments_of(process: Path) -> list[bytes]:
    try:
        return (process / "cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def watchdogs(label: str) -> list[int]:
    """The watchdogs whose task names this label."""
    commands = {int(process.name): b" ".join(arguments_of(process)) for process in processes()}
    return [pid for pid, command in commands.items() if b"watchdog" in command and label.encode() in command]


def until(true: Callable[[], Any], explain: Callable[[], str] = lambda: "", seconds: float = PATIENCE_SECONDS) -> Any:
    deadline = time.monotonic() + seconds
    while not (answer := true()):
        assert time.monotonic() < deadline, f"never came true\n{explain()[-6000:]}"
        time.sleep(0.05)
    return answer


def states(runs: list[int]) -> list[str]:
    found = dict(Run.objects.filter(pk__in=runs).values_list("pk", "state"))
    return [found[run] for run in runs]


def running(runs: list[int]) -> int:
    return states(runs).count("running")


def first_taken(runs: list[int]) -> float | None:
    """When, by the database's clock, the first of these left the driver that had it first; None until all did."""
    found = Attempt.objects.filter(run__in=runs, number=1)
    ended = [a.released_at.timestamp() for a in found if a.released_at is not None]
    return min(ended) if len(ended) == len(found) else None
