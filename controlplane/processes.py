"""Starting processes that cannot outlive us unnoticed, for the embedded services and the supervisor. Plain Python."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# Closes the gap between fork and setpriv: if we died in it, the new process has another parent by now, and ends.
STILL_WANTED = 'test "$PPID" = "$0" || exit 1; exec "$@"'


class ProcessError(Exception):
    """A process could not be started as promised: what, why, and what to do."""


@dataclass(frozen=True, slots=True)
class Account:
    """The unprivileged system user that servers run as when we are root."""

    name: str
    uid: int
    gid: int


def guarded(argv: Sequence[str], death_signal: signal.Signals, account: Account | None = None) -> list[str]:
    """Wrap a command so that the kernel sends it `death_signal` when we die, also by SIGKILL; drop to `account`.

    setpriv(1) rather than `preexec_fn`: no Python runs between fork and exec, which could deadlock beside threads, and
    the death signal is set after the change of user, which would clear it. All exec, so the pid is the command's own.
    """
    _require_main_thread()
    setpriv, shell = shutil.which("setpriv"), shutil.which("sh")
    if setpriv is None or shell is None:
        raise ProcessError(
            "setpriv was not found: it ties children to their supervisor. Install the package util-linux."
        )
    options = ["--pdeathsig", death_signal.name.removeprefix("SIG")]
    if account is not None:
        options += [f"--reuid={account.uid}", f"--regid={account.gid}", "--clear-groups"]
    return [setpriv, *options, "--", shell, "-c", STILL_WANTED, str(os.getpid()), *argv]


def _require_main_thread() -> None:
    # The kernel's "parent" is the thread that forked: a helper thread's child is signalled when that thread ends.
    if threading.current_thread() is not threading.main_thread():
        raise ProcessError(
            "guarded processes are started by the main thread only: they would die with a shorter-lived one."
        )


def exited(pid: int) -> bool:
    """Tell whether our child has ended, without reaping it: until then its process group's number is not reused."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def kill_group(pgid: int) -> None:
    """SIGKILL every process left in a group whose leader is our unreaped child."""
    try:
        os.killpg(pgid, signal.SIGKILL)
    except ProcessLookupError:
        return  # nobody is left, which is what was asked for


def works_in(pid: int, directory: Path) -> bool:
    """Tell whether `pid` is alive and has `directory` as its working directory: the mark of a server on that data."""
    try:
        return Path(f"/proc/{pid}/cwd").samefile(directory)
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return False  # gone, or another user's: either way not a server on our private directory


def working_in(directory: Path) -> list[int]:
    """List every process that works in `directory`: a server and its workers, also when their parent is dead."""
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and works_in(int(entry.name), directory)
    ]


def send(pid: int, sent: signal.Signals) -> None:
    """Send a signal to a process that may have ended meanwhile."""
    try:
        os.kill(pid, sent)
    except ProcessLookupError:
        return  # ended, which is what was asked for
