"""The owner of a token: which process holds it, said so that another one can prove it gone (rules P8, R10)."""

from __future__ import annotations

from controlplane.core.identity import ProcessIdentity, current_process, proven_gone

PARTS = 5


def owner_of(process: ProcessIdentity | None = None) -> str:
    """Of this process if none is given. A new one at each call: two keepers of one process displace each other too."""
    one = process or current_process()
    return f"{one.machine}/{one.boot_id}/{one.pid}/{one.pid_start}/{one.incarnation.hex}"


def is_gone(owner: str) -> bool:
    """Whether that process certainly no longer runs. False also for one of another machine, or if it names none."""
    parts = owner.split("/")
    if len(parts) != PARTS or not (parts[2].isdecimal() and parts[3].isdecimal()):
        return False
    return proven_gone(machine=parts[0], boot=parts[1], pid=int(parts[2]), pid_start=int(parts[3]))
