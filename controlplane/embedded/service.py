"""What the two embedded servers share: one owner, leftovers of a killed owner, start, stop."""

from __future__ import annotations

import secrets
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict, dataclass
from json import dumps, loads
from pathlib import Path
from typing import ClassVar

from controlplane.embedded.directories import EmbeddedError, Home, OwnerLock, usable_port
from controlplane.processes import guarded, send, working_in, works_in

START_SECONDS = 120.0  # crash recovery replays the log first
STOP_SECONDS = 30.0
POLL_SECONDS = 0.05
LOG_TAIL_BYTES = 2_000


@dataclass(frozen=True, slots=True)
class Instance:
    """What must stay the same over restarts, or clients could not come back. Kept in a file of mode 0600."""

    port: int
    admin_password: str
    password: str


class EmbeddedService(ABC):
    """A server that runs as our child and is stopped, by the kernel if need be, when we are gone.

    Invariant: while `start` has succeeded and `stop` was not called, this process alone holds the directory's lock.
    """

    title: ClassVar[str]
    folder: ClassVar[str]
    stop_signals: ClassVar[tuple[signal.Signals, ...]]

    def __init__(self, home: Home | None = None) -> None:
        self.home = home or Home.open()
        self.directory = self.home.path / self.folder
        self.data = self.directory / "data"
        self._lock = OwnerLock(self.directory / "owner.lock", self.title)
        self._process: subprocess.Popen[bytes] | None = None
        self._instance: Instance | None = None

    # -- what a server has to say for itself

    @abstractmethod
    def _prepare(self, instance: Instance) -> list[str]:
        """Lay out the data directory and return the server's command."""

    @abstractmethod
    def _answers(self, instance: Instance) -> bool:
        """Tell whether the server takes requests."""

    @abstractmethod
    def _pid_file(self) -> Path:
        """Return the file in which the server notes its process id, first line."""

    @abstractmethod
    def url(self) -> str:
        """Return the address for clients, with password."""

    # -- life

    @property
    def instance(self) -> Instance:
        """Port and passwords; only of a started service."""
        if self._instance is None:
            raise EmbeddedError(f"{self.title} was not started: it has no address yet.")
        return self._instance

    @property
    def pid(self) -> int | None:
        """Process id of the running server."""
        return self._process.pid if self._process is not None and self.is_running() else None

    def is_running(self) -> bool:
        """Tell whether our server process is alive."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Run the server and return once it answers. Refused when another process owns the directory."""
        try:
            for _ in self.starting():
                time.sleep(POLL_SECONDS)
        except BaseException:
            self.stop()
            raise

    def starting(self) -> Iterator[None]:
        """The same in steps: yields wherever it would wait, ends once the server answers.

        For whoever has other things to look after meanwhile. It cannot be given to a thread: the server would be
        stopped at that thread's end (see `guarded`). After a failure, or given up in the middle: `stop`, `stopping`.
        """
        if self.is_running():
            return
        self.home.private_directory(self.folder)
        self._lock.take()
        yield from self._stop_leftover()
        self._instance = self._load_instance()
        self._spawn(self._prepare(self._instance))
        yield from self._wait_until_ready(self._instance)
        self._provision(self._instance)

    def _provision(self, instance: Instance) -> None:  # noqa: B027 - not every server needs it
        """What a server that answers needs before clients can work."""

    def stop(self) -> None:
        """Stop the server cleanly, more firmly when it does not listen; then let others own the directory."""
        for _ in self.stopping():
            time.sleep(POLL_SECONDS)

    def stopping(self) -> Iterator[None]:
        """The same in steps, like `starting`."""
        if self._process is not None:
            yield from self._end(self._process)
            self._process = None
        self._lock.free()

    def _end(self, process: subprocess.Popen[bytes]) -> Iterator[None]:
        for sent in self.stop_signals:
            process.send_signal(sent)
            if (yield from _within(STOP_SECONDS, lambda: process.poll() is not None)):
                return
        raise EmbeddedError(f"{self.title} does not end, not even by {self.stop_signals[-1].name}: its disk may hang.")

    def _stop_leftover(self) -> Iterator[None]:
        """End a server that outlived its owner, and wait for the workers of one that was killed.

        We hold the lock, so whoever works in our data directory is nobody's. Only the recorded server is asked: stop
        signals mean other things to PostgreSQL's workers, which end by themselves when their server is gone.
        """
        recorded = self._recorded_pid()
        if recorded is not None and works_in(recorded, self.data):
            send(recorded, self.stop_signals[0])
        if not (yield from _within(STOP_SECONDS, lambda: not working_in(self.data))):
            for pid in working_in(self.data):
                send(pid, self.stop_signals[-1])
            if not (yield from _within(STOP_SECONDS, lambda: not working_in(self.data))):
                raise EmbeddedError(
                    f"processes {working_in(self.data)} of an earlier {self.title} do not end: its disk may hang. "
                    "End them by hand before starting again."
                )
        if recorded is not None and Path(f"/proc/{recorded}").exists():
            # The number belongs to another process now; PostgreSQL would take that one for itself and refuse to start.
            self._pid_file().unlink(missing_ok=True)

    def _recorded_pid(self) -> int | None:
        pid_file = self._pid_file()
        words = pid_file.read_text().split(maxsplit=1) if pid_file.exists() else []
        return int(words[0]) if words else None

    def _load_instance(self) -> Instance:
        path = self.directory / "instance.json"
        known = Instance(**loads(path.read_text())) if path.exists() else None
        instance = Instance(
            port=usable_port(known.port if known else None),
            admin_password=known.admin_password if known else secrets.token_urlsafe(24),
            password=known.password if known else secrets.token_urlsafe(24),
        )
        if instance != known:
            self.home.write_private(path, dumps(asdict(instance)), for_server=False)
        return instance

    def _spawn(self, argv: list[str]) -> None:
        with (self.directory / "server.log").open("wb") as log:
            self._process = subprocess.Popen(
                guarded(argv, self.stop_signals[0], self.home.account),
                cwd=self.data,
                env={"LANG": "C.UTF-8", "PATH": "/usr/bin:/bin"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for us: the servers stop last
            )

    def _wait_until_ready(self, instance: Instance) -> Iterator[None]:
        deadline = time.monotonic() + START_SECONDS
        while not self._answers(instance):
            if not self.is_running():
                raise EmbeddedError(f"{self.title} ended while it was starting. Its last words:\n{self._log_tail()}")
            if time.monotonic() > deadline:
                raise EmbeddedError(f"{self.title} did not answer within {START_SECONDS:.0f} s:\n{self._log_tail()}")
            yield

    def _log_tail(self) -> str:
        return (self.directory / "server.log").read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()


def _within(seconds: float, true: Callable[[], bool]) -> Generator[None, None, bool]:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        yield
    return True
