"""Processes of this machine, named so that a reused number is not taken for them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from runners.agent.executors import cgroups, scratch
from runners.agent.executors.base import ExecutorError

KILL_ROUNDS = 100


def identity(pid: int) -> str:
    """Boot, number and start time of a process; '' when there is none."""
    try:
        # A process chooses its own name, and needs not choose one in UTF-8.
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    fields = stat.rpartition(")")[2].split()
    if fields[0] in {"Z", "X"}:
        return ""
    return f"{boot}:{pid}:{fields[19]}"


def is_running(name: str) -> bool:
    """Whether the process named so is this very one and lives."""
    return bool(name) and identity(int(name.split(":")[1])) == name


def kill_leftovers(plan: dict[str, Any]) -> None:
    """Kill what is in a run's cgroup, remove the group and the directory: the shim's part, when it is gone itself.

    Raises:
        ExecutorError: when something is left.
    """
    if plan["procs"] and Path(plan["procs"]).exists():
        try:
            _empty(plan)
            cgroups.remove(plan["cgroups"])
        except OSError as error:
            # A shim that still ends removes it too, between two of these steps.
            if Path(plan["procs"]).exists():
                raise ExecutorError(f"a cgroup of {plan['directory']} cannot be removed: {error}") from error
    scratch.remove_tree(Path(plan["directory"]))


def _empty(plan: dict[str, Any]) -> None:
    Path(plan["pids_max"]).write_text("0")
    left: list[int] = []
    for turn in range(KILL_ROUNDS):
        left = [int(line) for line in Path(plan["procs"]).read_text().split()]
        if not left:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(min(0.001 * 2**turn, 0.1))
    raise ExecutorError(f"processes {left} in {plan['procs']} do not die")
