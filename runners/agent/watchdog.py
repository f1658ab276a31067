"""The watchdog: a process beside a driver that outlives it and removes its containers when the fence is past.

It is told deadlines over its standard input, a pipe from the driver, and confirms each on its standard output. It acts
when the deadline has passed, and at once when the pipe ends, for then the driver is gone: nobody is left who could
wait for what runs, and its runs are executed again anyway. It goes on until the driver renewed or, with the driver
gone, until nothing is left and nothing could come any more.

A pipe and no file: what is written survives the writer, its end is the proof of death, and nothing is left behind.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runners.agent.clock import now
from runners.agent.executors.base import ExecutorError

if TYPE_CHECKING:
    from collections.abc import Mapping

Sweep = Callable[[], int]
"""Removes everything the driver made, in any state, and confirms it; returns how much there was."""

IDLE_SECONDS = 1.0
"""Timers do not count suspended time, the deadline does: after a resumption it is looked at within this."""
BUSY_SECONDS = 0.25
BYE = b"bye"


@dataclass(frozen=True, slots=True)
class Task:
    """What a watchdog has to know from the start; the deadlines come later."""

    executor: str
    labels: Mapping[str, str]
    endpoint: str = ""

    def as_json(self) -> str:
        """For the command line."""
        return json.dumps({"executor": self.executor, "labels": dict(self.labels), "endpoint": self.endpoint})


def make_sweep(task: Task) -> Sweep:
    """What to do when the fence is past. Imports now what it will need then."""
    if task.executor == "docker":
        from runners.agent.executors.docker_adapter import DockerAdapter  # noqa: PLC0415 - only where it is used
        from runners.agent.executors.docker_sweep import remove_all  # noqa: PLC0415

        adapter = DockerAdapter(task.endpoint)
        return lambda: remove_all(adapter, task.labels)
    from runners.agent.executors.process_sweep import remove_forcibly  # noqa: PLC0415

    return lambda: remove_forcibly(task.labels)


class Watchdog:
    """Reads deadlines from `told`, confirms them on `confirm`."""

    def __init__(self, sweep: Sweep, told: int, confirm: int, *, say: Callable[[str], None] | None = None) -> None:
        self._sweep = sweep
        self._told = told
        self._confirm = confirm
        self._say = say or _to_standard_error
        self._deadline: float | None = None
        self._partial = b""
        self._orphaned = False
        self._dismissed = False
        self._fired = False
        os.set_blocking(told, False)

    def run(self) -> None:
        """Until dismissed, or the driver is gone and nothing of it can be left."""
        while not self._dismissed:
            # The clock before the pipe: what was written before the deadline is then read before it is judged.
            moment = now()
            self._listen()
            if self._orphaned or (self._deadline is not None and moment >= self._deadline):
                clear = self._remove()
                if self._orphaned and clear and (self._deadline is None or moment >= self._deadline):
                    return
                self._wait(BUSY_SECONDS)
            else:
                self._fired = False
                self._wait(IDLE_SECONDS if self._deadline is None else min(IDLE_SECONDS, self._deadline - moment))

    def _wait(self, seconds: float) -> None:
        # An ended pipe is always ready: nothing is to be heard from it any more.
        fds = [] if self._orphaned else [self._told]
        select.select(fds, [], [], max(0.0, seconds))

    def _listen(self) -> None:
        while not self._orphaned:
            try:
                data = os.read(self._told, 65536)
            except BlockingIOError:
                return
            self._orphaned = not data
            self._partial += data
            *lines, self._partial = self._partial.split(b"\n")
            for line in lines:
                self._obey(line)

    def _obey(self, line: bytes) -> None:
        if line == BYE:
            self._dismissed = True
            return
        number, _, deadline = line.partition(b" ")
        self._deadline = float(deadline) if deadline else None
        try:
            os.write(self._confirm, number + b"\n")
        except BrokenPipeError:
            return  # The driver is going; the end of the other pipe says so.

    def _remove(self) -> bool:
        """True: nothing was there."""
        if not self._fired:
            self._fired = True
            self._say("the driver is gone" if self._orphaned else "the fence is past: the driver does not renew")
        try:
            removed = self._sweep()
        except ExecutorError as error:
            self._say(f"not everything is removed, trying again: {error}")
            return False
        if removed:
            self._say(f"removed {removed} executions")
        return not removed


def _to_standard_error(text: str) -> None:
    try:
        os.write(2, f"{json.dumps({'event': 'watchdog', 'pid': os.getpid(), 'message': text})}\n".encode())
    except OSError:
        return  # Whoever read the driver's log went with it; the work matters more than its report.


def main() -> None:
    """Entry point of the process: the task is its only argument."""
    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        # What stops the driver must not stop it: it ends by itself, soon after the driver.
        signal.signal(name, signal.SIG_IGN)
    task = Task(**json.loads(sys.argv[1]))
    Watchdog(make_sweep(task), 0, 1).run()
