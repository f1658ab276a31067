"""From an assignment to the container that is asked for, and whether the daemon made what was asked (rule P17)."""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING, Any

from admission.spec import MIB
from runners.agent.environment import run_environment
from runners.agent.executors.base import ExecutorError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from runners.agent.assignment import Assignment

NOBODY_ID = 65_534
NOBODY = "65534:65534"
NOBODY_OWNS = "uid=65534,gid=65534"
LABEL_RUN = "wharfinger.run"
LABEL_ATTEMPT = "wharfinger.attempt"
LABEL_EPOCH = "wharfinger.epoch"
LABEL_TOKEN = "wharfinger.token"  # noqa: S105 - a name of a label
LABEL_IMAGE = "wharfinger.image"
"""The image as created from: where it is not the one asked for, the log begins with a line that says so."""
TEMPORARY = "/tmp"  # noqa: S108 - the container's own
CPU_PERIOD = 100_000
# What an adopting replica reads again from the start. The stored log is capped at 16 MiB an attempt; the rest is
# room for the JSON around each line. Unbounded files would let one run fill the daemon's disk.
LOG_CONFIG = {"Type": "json-file", "Config": {"max-size": "32m", "max-file": "2"}}

Json = dict[str, Any]


def container_name(assignment: Assignment, labels: Mapping[str, str]) -> str:
    """The same for each repeat of one epoch, so that a second create meets a conflict and not a second container."""
    place = hashlib.sha256(repr(sorted(labels.items())).encode()).hexdigest()[:8]
    return f"wharfinger-{assignment.run}-{assignment.attempt}-{assignment.epoch}-{place}"


def all_labels(assignment: Assignment, labels: Mapping[str, str]) -> dict[str, str]:
    """The caller's labels and those that name the hold.

    The token is this create's alone unless the caller has one: what is looked for and removed by it must never be
    another's.
    """
    own = {
        LABEL_RUN: str(assignment.run),
        LABEL_ATTEMPT: str(assignment.attempt),
        LABEL_EPOCH: str(assignment.epoch),
        LABEL_TOKEN: secrets.token_hex(16),
    }
    return {**own, **labels}


def alias_note(asked: str, used: str) -> bytes:
    """The first line of a run's log where another image stands in. An adopter writes the same, byte for byte: the
    offsets of the stored log count it."""
    return f"[wharfinger: image {asked} is not present here; using {used} as configured]\n".encode()


def container_config(
    assignment: Assignment, image: str, labels: Mapping[str, str], files: Path | None, *, with_init: bool
) -> Json:
    """The body of the create call."""
    spec = assignment.spec
    return {
        "Image": image,
        "Cmd": list(spec.command),
        "Entrypoint": [],
        "Env": [f"{key}={value}" for key, value in run_environment(assignment, home=spec.working_dir).items()],
        "WorkingDir": spec.working_dir,
        "User": NOBODY,
        "Labels": {**labels, LABEL_IMAGE: image},
        "Tty": False,
        "AttachStdout": True,
        "AttachStderr": True,
        "HostConfig": _host_config(assignment, files, with_init=with_init),
    }


def _host_config(assignment: Assignment, files: Path | None, *, with_init: bool) -> Json:
    spec = assignment.spec
    limits = spec.resources
    # What is kept is read after the end, when a tmpfs is gone. So it is written into the container's own layer, which
    # goes with the container; nothing else of it is writable for the run's user. `disk.py` bounds it.
    keeps = bool(spec.artifacts)
    # Owner and mode: older runc gives the mount the mode that the image's directory has.
    tmpfs = f"rw,exec,nosuid,nodev,mode=1777,{NOBODY_OWNS},size={limits.disk_mib}m"
    return {
        "NetworkMode": spec.network,
        "ReadonlyRootfs": not keeps,
        "Tmpfs": {TEMPORARY: tmpfs.replace("exec", "noexec"), **({} if keeps else {spec.working_dir: tmpfs})},
        "Mounts": [_mount(files, spec.working_dir, name) for name in spec.files] if files else [],
        "ShmSize": min(limits.disk_mib, 64) * MIB,
        "Memory": limits.memory_mib * MIB,
        "MemorySwap": limits.memory_mib * MIB,
        "CpuPeriod": CPU_PERIOD,
        "CpuQuota": max(1000, int(limits.cpu * CPU_PERIOD)),
        # The init process takes one of them.
        "PidsLimit": limits.pids + with_init,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "Privileged": False,
        "Init": with_init,
        "AutoRemove": False,
        "RestartPolicy": {"Name": "no"},
        "LogConfig": LOG_CONFIG,
        "Ulimits": [_ulimit("core", 0), *([_ulimit("fsize", limits.disk_mib * MIB)] if keeps else [])],
    }


def _ulimit(name: str, value: int) -> Json:
    return {"Name": name, "Soft": value, "Hard": value}


def _mount(files: Path, working_dir: str, name: str) -> Json:
    return {"Type": "bind", "Source": str(files / name), "Target": f"{working_dir}/{name}", "ReadOnly": True}


_LIMITS = ("Memory", "MemorySwap", "CpuPeriod", "CpuQuota", "PidsLimit", "CapDrop", "SecurityOpt", "ReadonlyRootfs")
_PLACES = ("NetworkMode", "Tmpfs", "Privileged", "AutoRemove")


def check_applied(asked: Json, inspected: Json) -> None:
    """A daemon drops limits that its kernel lacks with a mere warning: compare, and refuse to start.

    Raises:
        ExecutorError: naming each limit that is not as asked.
    """
    want, have = asked["HostConfig"], inspected["HostConfig"]
    wrong = [
        f"{key}: asked {want[key]!r}, is {have.get(key)!r}" for key in _LIMITS + _PLACES if have.get(key) != want[key]
    ]
    if inspected["Config"].get("User") != asked["User"]:
        wrong.append(f"User: asked {asked['User']!r}, is {inspected['Config'].get('User')!r}")
    if wrong:
        raise ExecutorError(
            f"the daemon did not apply what was asked ({'; '.join(wrong)}); "
            "it needs the memory, cpu and pids controllers (see `docker info` for its warnings)"
        )
