"""Who this process is: enough to prove later that it is gone.

A process is named by (machine, boot and PID namespace, pid, start time): a pid alone is reused, and counted anew in
every container; a host name alone is cloned.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MACHINE_ID = Path("/etc/machine-id")
_PID_NAMESPACE = Path("/proc/self/ns/pid")
_FIRST_NAMESPACE = "4026531836"  # PROC_PID_INIT_INO of the kernel: the machine's own


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One life of one process."""

    incarnation: UUID
    host: str
    machine: str
    boot_id: str
    pid: int
    pid_start: int


def process_start(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot, or None if there is no such process on this machine."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name may hold spaces and parentheses: fields are counted from the last one.
    return int(stat.rpartition(")")[2].split()[19])


def boot_id() -> str:
    """Changes with every start of the machine; in a PID namespace of its own, as in a container, `boot:namespace`."""
    boot = _BOOT_ID.read_text().strip()
    namespace = str(_PID_NAMESPACE.readlink()).strip("pid:[]")
    return boot if namespace == _FIRST_NAMESPACE else f"{boot}:{namespace}"


def machine_id() -> str:
    """Names the machine; falls back on the host name where the system keeps no id."""
    if _MACHINE_ID.exists() and (text := _MACHINE_ID.read_text().strip()):
        return text
    return socket.gethostname()


def current_process() -> ProcessIdentity:
    """A new identity for this process. Called once, at the start of the role that beats."""
    pid = os.getpid()
    return ProcessIdentity(
        incarnation=uuid4(),
        host=socket.gethostname(),
        machine=machine_id(),
        boot_id=boot_id(),
        pid=pid,
        pid_start=process_start(pid) or 0,
    )


def proven_gone(*, machine: str, boot: str, pid: int, pid_start: int) -> bool:
    """Whether that process certainly no longer runs. False also means "not known" (another machine or container)."""
    if machine != machine_id():
        return False
    here = boot_id()
    if boot == here:
        return process_start(pid) != pid_start or _is_zombie(pid)
    # Before the last start of this machine. A container knows nothing of the kind: its machine id may be that of its
    # image, on whichever machine it runs, and pids of its neighbours mean nothing to it.
    return ":" not in boot and ":" not in here


def _is_zombie(pid: int) -> bool:
    """Whether it has ended, every thread of it, and is only not yet waited for by its parent."""
    try:
        tasks = [path.name for path in Path(f"/proc/{pid}/task").iterdir()]
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z" and tasks == [str(pid)]
