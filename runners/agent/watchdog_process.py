"""The driver's side of its watchdog: starts it, and again when it is gone; tells it deadlines, hears it confirm."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from runners.agent.backoff import Backoff
from runners.agent.clock import now
from runners.agent.executors.base import Executor, ExecutorError
from runners.agent.fence import Fence
from runners.agent.watchdog import BYE, Task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runners.agent.events import OnEvent

# -P and the path as an argument: this very package is found, whatever the working directory holds.
BOOT = "import sys; sys.path.insert(0, sys.argv.pop()); from runners.agent.watchdog import main; main()"
ROOT = Path(__file__).resolve().parents[2]
PING_SECONDS = 1.0
START_SECONDS = 30.0
LEAVE_SECONDS = 5.0
# It does not listen while it removes: longer than the removal of one container may take.
HANG_SECONDS = 60.0


class WatchdogProcess:
    """Implements `runners.agent.fence.Keeper` with a process of its own session. Used by many threads."""

    def __init__(self, task: Task, on_event: OnEvent) -> None:
        self._task = task
        self._on_event = on_event
        self._deadline: float | None = None
        self._sent = 0
        self._confirmed = 0
        self._input: int | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep, name="watchdog", daemon=True)

    @property
    def pid(self) -> int | None:
        """Of the process at the moment."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Begin. Returns at once; what asks for a confirmation waits for the process."""
        self._thread.start()

    def tell(self, deadline: float | None) -> None:
        """See `Keeper.tell`."""
        with self._changed:
            self._deadline = deadline
            self._send()

    def confirm(self, until: float) -> bool:
        """See `Keeper.confirm`. A new question each time: what a watchdog said that died since counts for nothing."""
        with self._changed:
            number = self._send()
            return self._changed.wait_for(lambda: self._confirmed >= number, max(0.0, until - now()))

    def close(self) -> None:
        """See `Keeper.close`."""
        with self._changed:
            self._closed = True
            self._write(BYE + b"\n")
        self._thread.join(LEAVE_SECONDS)

    def _send(self) -> int:
        self._sent += 1
        text = "" if self._deadline is None else repr(self._deadline)
        self._write(f"{self._sent} {text}\n".encode())
        return self._sent

    def _write(self, line: bytes) -> None:
        """A full or broken pipe means a watchdog that hangs or is gone: it will be replaced, and told all again."""
        if self._input is not None:
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                os.write(self._input, line)

    def _keep(self) -> None:
        backoff = Backoff(0.1, 5.0)
        pause = threading.Event()
        while not self._closed:
            began = now()
            try:
                answers = self._spawn()
            except OSError as error:
                self._on_event("watchdog_error", error=f"cannot be started: {error}")
            else:
                self._hear(answers)
                self._bury(answers)
            if not self._closed:
                if now() - began > START_SECONDS:
                    backoff.reset()
                pause.wait(backoff.delay())

    def _spawn(self) -> int:
        told, tell = os.pipe2(os.O_CLOEXEC)
        answers, answer = os.pipe2(os.O_CLOEXEC)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", BOOT, self._task.as_json(), str(ROOT)],
                stdin=told,
                stdout=answer,
                start_new_session=True,
            )
        except OSError:
            os.close(tell)
            os.close(answers)
            raise
        finally:
            os.close(told)
            os.close(answer)
        os.set_blocking(tell, False)
        with self._changed:
            self._input = tell
            self._send()
        self._on_event("watchdog_started", pid=self._process.pid)
        return answers

    def _hear(self, answers: int) -> None:
        """Until it is gone. One that is asked and keeps silent for too long hangs: killed, so that it is replaced."""
        heard, patience = now(), START_SECONDS
        partial = b""
        while True:
            if select.select([answers], [], [], PING_SECONDS)[0]:
                data = os.read(answers, 4096)
                if not data:
                    return
                *lines, partial = (partial + data).split(b"\n")
                heard, patience = now(), HANG_SECONDS
                self._note(int(lines[-1]) if lines else 0)
            elif now() - heard > patience:
                self._on_event("watchdog_error", error=f"silent for {patience:g} s")
                if self._process is not None:
                    self._process.kill()
                heard = now()
            else:
                with self._changed:
                    self._send()

    def _note(self, number: int) -> None:
        with self._changed:
            self._confirmed = max(self._confirmed, number)
            self._changed.notify_all()

    def _bury(self, answers: int) -> None:
        with self._changed:
            if self._input is not None:
                os.close(self._input)
            self._input = None
        os.close(answers)
        if self._process is not None:
            code = self._process.wait()
            if not self._closed:
                self._on_event("watchdog_gone", pid=self._process.pid, code=code)


def make_fence(
    executor: Executor,
    labels: Mapping[str, str],
    on_event: OnEvent,
    run_seconds: float,
    *,
    beat_seconds: float | None = None,
    vouched_at: float = 0.0,
) -> Fence:
    """A fence with its watchdog under way. `labels` are those of this life of the driver alone.

    Raises:
        ExecutorError: nothing could outlive this process.
    """
    if os.getpid() == 1:
        raise ExecutorError(
            "this driver is the first process of its container: its watchdog would die with it, so strict fencing "
            "cannot hold; run the driver on the machine itself, or set CONTROLPLANE_FENCE=off"
        )
    keeper = WatchdogProcess(Task(executor.name, labels, executor.endpoint), on_event)
    keeper.start()
    return Fence(keeper, run_seconds, beat_seconds=beat_seconds, vouched_at=vouched_at)
