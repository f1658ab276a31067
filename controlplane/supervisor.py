"""Supervise the processes of one `up`: start, watch, restart with back-off, stop in reverse order. Plain Python.

Children write to files, not to pipes: a supervisor that is slow, stopped or killed blocks none of them.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby
from pathlib import Path

from controlplane.processes import exited, guarded, kill_group, send

TICK_SECONDS = 0.1
FIRST_DELAY_SECONDS = 1.0
LONGEST_DELAY_SECONDS = 30.0
# A child that lived this long was healthy: its next death starts the back-off anew.
HEALTHY_SECONDS = 60.0
LOG_LIMIT_BYTES = 20_000_000


class Restart(StrEnum):
    """What to do when a child ends by itself."""

    ALWAYS = "always"
    ON_FAILURE = "on_failure"
    NEVER = "never"


class Happened(StrEnum):
    """What an event reports."""

    STARTED = "started"
    DIED = "died"
    NOT_RESTARTED = "not_restarted"
    ENDED = "ended"
    STOPPED = "stopped"
    KILLED = "killed"


@dataclass(frozen=True, slots=True)
class Child:
    """One process to keep running. `env` is the whole environment of the child.

    Children of one `group`, started one after the other, are stopped together: their times to drain do not add up.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    group: str = ""
    restart: Restart = Restart.ALWAYS
    stop_signal: signal.Signals = signal.SIGTERM
    stop_grace_seconds: float = 15.0


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a child's life. `exit_code` is negative for a signal; `delay_seconds` precedes a restart."""

    happened: Happened
    child: str
    pid: int
    restarts: int
    exit_code: int | None = None
    delay_seconds: float | None = None


@dataclass(slots=True)
class _Kept:
    child: Child
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    failures: int = 0  # in a row
    started_at: float = 0.0
    due_at: float | None = field(default=None)


class Supervisor:
    """Keeps children running until `stop`. Used by one thread, the main one: see `guarded`."""

    def __init__(self, log_directory: Path, on_event: Callable[[Event], None]) -> None:
        self._log_directory = log_directory
        self._on_event = on_event
        self._kept: dict[str, _Kept] = {}

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the children that run now."""
        return {name: kept.process.pid for name, kept in self._kept.items() if kept.process is not None}

    @property
    def restarts(self) -> dict[str, int]:
        """How often each child was restarted."""
        return {name: kept.restarts for name, kept in self._kept.items()}

    def log_path(self, name: str) -> Path:
        """Return the file that holds a child's output; an older part lies beside it with the suffix `.1`."""
        return self._log_directory / f"{name}.log"

    def add(self, child: Child) -> None:
        """Start a child and keep it."""
        if child.name in self._kept:
            raise ValueError(f"a child named {child.name!r} is kept already; names must differ")
        self._log_directory.mkdir(parents=True, exist_ok=True)
        kept = _Kept(child)
        self._kept[child.name] = kept
        self._spawn(kept)

    def tick(self) -> None:
        """Report and bury the dead, restart who is due, rotate logs. Never waits."""
        now = time.monotonic()
        for kept in self._kept.values():
            if kept.process is not None and exited(kept.process.pid):
                self._bury(kept, kept.process, now)
            elif kept.due_at is not None and now >= kept.due_at:
                kept.restarts += 1
                self._spawn(kept)
            self._rotate(kept.child.name)

    def stop(self) -> None:
        """Stop every child, the last one started first; return when no process of their groups is left."""
        for _, together in groupby(
            reversed(self._kept.values()), key=lambda kept: kept.child.group or kept.child.name
        ):
            stopping = list(together)
            for kept in stopping:
                kept.due_at = None
                if kept.process is not None:
                    # Not Popen.send_signal: that reaps a child which has just ended.
                    send(kept.process.pid, kept.child.stop_signal)
            asked_at = time.monotonic()
            for kept in stopping:
                if kept.process is not None:
                    self._await_end(kept, kept.process, asked_at)

    def _spawn(self, kept: _Kept) -> None:
        child = kept.child
        # Appending, so that rotation by truncation works: every write goes to the then end of the file.
        with self.log_path(child.name).open("ab") as log:
            process = subprocess.Popen(
                guarded(child.argv, child.stop_signal),
                env=dict(child.env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches us only; the order of stopping is ours
            )
        kept.process, kept.started_at, kept.due_at = process, time.monotonic(), None
        self._tell(kept, Happened.STARTED, process)

    def _bury(self, kept: _Kept, process: subprocess.Popen[bytes], now: float) -> None:
        # While the leader is unreaped, its number cannot be given to a stranger's group.
        kill_group(process.pid)
        exit_code = process.wait()
        kept.process = None
        if not _wanted_again(kept.child.restart, exit_code):
            self._tell(kept, Happened.ENDED, process, exit_code)
            return
        kept.failures = 1 if now - kept.started_at >= HEALTHY_SECONDS else kept.failures + 1
        delay = back_off(kept.failures)
        kept.due_at = now + delay
        self._tell(kept, Happened.DIED, process, exit_code, delay)

    def _await_end(self, kept: _Kept, process: subprocess.Popen[bytes], asked_at: float) -> None:
        """The leader was asked: it ends its own workers in its own order. Whatever is left of the group is killed."""
        deadline = asked_at + kept.child.stop_grace_seconds
        while not (in_time := exited(process.pid)) and time.monotonic() < deadline:
            time.sleep(TICK_SECONDS / 4)
        kill_group(process.pid)
        exit_code = process.wait()
        kept.process = None
        self._tell(kept, Happened.STOPPED if in_time else Happened.KILLED, process, exit_code)

    def _rotate(self, name: str) -> None:
        """Copy and truncate: the child keeps its file open. Bytes written between the two calls are lost, no more."""
        path = self.log_path(name)
        if path.stat().st_size > LOG_LIMIT_BYTES:
            shutil.copyfile(path, path.with_suffix(".log.1"))
            os.truncate(path, 0)

    def _tell(
        self,
        kept: _Kept,
        happened: Happened,
        process: subprocess.Popen[bytes],
        exit_code: int | None = None,
        delay: float | None = None,
    ) -> None:
        self._on_event(Event(happened, kept.child.name, process.pid, kept.restarts, exit_code, delay))


def back_off(failures: int) -> float:
    """Return the wait before restart number `failures` in a row: 1, 2, 4 … 30 s, of which a random half is taken off.

    Jitter, because children that died of one cause would otherwise come back in the same instant, again and again.
    """
    longest = min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0 ** min(failures - 1, 10))
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - no secret


def _wanted_again(restart: Restart, exit_code: int) -> bool:
    return restart is Restart.ALWAYS or (restart is Restart.ON_FAILURE and exit_code != 0)
