"""The driver's side of one process run: reads its output and its end from the shim, and tells it to stop."""

from __future__ import annotations

import contextlib
import marshal
import os
import select
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runners.agent.clock import now
from runners.agent.executors.base import ExecutorError, Exit, LogSink
from runners.agent.executors.processes import kill_leftovers
from runners.agent.executors.tree import collect_from_tree

if TYPE_CHECKING:
    from admission.spec import RunSpec
    from runners.agent.artifacts import Collected

READ_BYTES = 256 * 1024
# After the shim's word that all is over, output can only be held open by something that escaped it.
DRAIN_SECONDS = 2.0
# The shim needs this long at most between SIGKILL and its report.
SHIM_PATIENCE_SECONDS = 40.0

Spawn = Callable[[int, int], "subprocess.Popen[bytes]"]


class ProcessExecution:
    """One shim and what runs under it. `wait` and `remove` belong to one thread; `stop` may come from any."""

    def __init__(self, spawn: Spawn, plan: dict[str, Any], spec: RunSpec, sink: LogSink, record: Path) -> None:
        self._plan = plan
        self._spec = spec
        self._sink = sink
        self._record = record
        self._reason = ""
        self._give_up_at: float | None = None
        self._ended: Exit | None = None
        self._report: dict[str, Any] = {}
        self._partial = b""
        self._lock = threading.Lock()
        self._output, output = os.pipe2(os.O_CLOEXEC)
        self._status, status = os.pipe2(os.O_CLOEXEC)
        try:
            self._shim = spawn(status, output)
        except OSError:
            os.close(self._output)
            os.close(self._status)
            raise
        finally:
            os.close(output)
            os.close(status)
        self._open = True
        self._tell(marshal.dumps(plan).hex().encode())

    def wait(self, deadline: float | None) -> Exit:
        """See `Execution.wait`."""
        if self._ended is None:
            self._pump(deadline)
            self._ended = self._outcome()
        return self._ended

    def stop(self, reason: str) -> None:
        """See `Execution.stop`. The shim counts the grace, so that a paused driver does not lengthen it."""
        with self._lock:
            if not self._reason:
                self._reason = reason
                self._give_up_at = now() + self._spec.stop_grace_seconds + SHIM_PATIENCE_SECONDS
            if self._open:
                self._tell(f"stop {self._spec.stop_grace_seconds}".encode())

    def let_go(self) -> None:
        """See `Execution.let_go`. Nobody can adopt a process: there is nothing to leave to anybody."""
        self.stop("superseded")

    def _tell(self, line: bytes) -> None:
        if self._shim.stdin is None:
            return
        # A shim that is gone has closed its end: the status pipe tells the rest.
        with contextlib.suppress(BrokenPipeError):
            self._shim.stdin.write(line + b"\n")
            self._shim.stdin.flush()

    def _pump(self, deadline: float | None) -> None:
        """Deliver output until both pipes ended, or the shim reported and what remains open is none of ours."""
        open_fds = {self._output, self._status}
        until: float | None = None
        while open_fds:
            if deadline is not None and now() >= deadline and not self._reason:
                self.stop("timeout")
            if until is None and self._status not in open_fds:
                until = now() + DRAIN_SECONDS
            limits = [t for t in (until, self._give_up_at, None if self._reason else deadline) if t is not None]
            ready = self._ready(open_fds, min(limits, default=None))
            if not ready and self._given_up(until):
                return
            for fd in ready:
                if not self._read(fd):
                    open_fds.discard(fd)

    def _given_up(self, until: float | None) -> bool:
        moment = now()
        return (until is not None and moment >= until) or (self._give_up_at is not None and moment >= self._give_up_at)

    @staticmethod
    def _ready(fds: set[int], until: float | None) -> set[int]:
        poll = select.poll()
        for fd in fds:
            poll.register(fd, select.POLLIN)
        # Without a bound a stop from another thread, which sets one, would not be noticed.
        seconds = 1.0 if until is None else min(1.0, max(0.0, until - now()))
        return {fd for fd, _ in poll.poll(seconds * 1000 + 1)}

    def _read(self, fd: int) -> bool:
        data = os.read(fd, READ_BYTES)
        if fd == self._output:
            if data:
                self._sink(data)
            return bool(data)
        self._partial += data
        *lines, self._partial = self._partial.split(b"\n")
        for line in lines:
            self._report.update(marshal.loads(bytes.fromhex(line.decode())))  # noqa: S302 - from our own shim
        return bool(data) and "exit" not in self._report

    def _outcome(self) -> Exit:
        report = self._report
        if "error" in report:
            return Exit(127, "executor_error", str(report["error"]))
        if "exit" not in report:
            return Exit(None, self._reason or "lost", "its shim was killed or did not report; see the machine's log")
        code = report["exit"]
        if self._reason:
            return Exit(code, self._reason)
        if code is None and report["fenced"]:
            return Exit(None, "lost", "stopped by the driver's watchdog: the fence was past")
        if code is None:
            return Exit(None, "timeout", "stopped by its shim: the driver was suspended past the run's deadline")
        return Exit(code, "oom" if report["oom"] and code else "")

    def collect(self, collection: Collected) -> None:
        """See `Execution.collect`. Only when nothing of it runs any more: nobody is left who could swap a file."""
        self._close()
        if self._report.get("left") or "exit" not in self._report:
            return
        collect_from_tree(Path(self._plan["directory"]), self._spec.artifacts, collection)

    def remove(self) -> None:
        """See `Execution.remove`. The shim has done it; here is looked whether it has."""
        self._close()
        try:
            self._shim.wait(SHIM_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise ExecutorError(f"the shim {self._shim.pid} of {self._plan['directory']} does not end") from error
        kill_leftovers(self._plan)
        left = [pid for pid in self._report.get("left", ()) if Path(f"/proc/{pid}").exists()]
        if left:
            raise ExecutorError(f"processes {left} of {self._plan['directory']} do not die")
        self._record.unlink(missing_ok=True)

    def _close(self) -> None:
        """Closing the shim's input makes it kill what still runs."""
        with self._lock:
            if not self._open:
                return
            self._open = False
            if self._shim.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    self._shim.stdin.close()
            os.close(self._output)
            os.close(self._status)
