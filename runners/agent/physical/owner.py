"""The owner of a token: which process holds it, said so that another one can prove it gone (rules P8, R10)."""

from __future__ import annotations

from controlplane.core.identity import ProcessIdentity, current_process, proven_gone


def owner_of(process: ProcessIdentity | None = None) -> str:
    """Of this process if none is given. A new one at each call: two keepers of one process displace each other too."""
    one = process or current_process()
    return f"{one.machine}/{one.boot_id}/{one.pid}/{one.pid_start}/{one.incarnation.hex}"


def is_gone(owner: str) -> bool:
    """Whether that process certainly no longer runs. False also for one of another machine, and for what is no owner."""
    machine, boot, pid, start, *nonce = (*owner.split("/"), "", "", "")
    if len(nonce) != 4 or not (pid.isdecimal() and start.isdecimal()):
        return False
    return proven_gone(machine=machine, boot=boot, pid=int(pid), pid_start=int(start))
