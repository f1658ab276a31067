"""Removing what a driver executes as processes, found by the records that stand beside their directories.

Two forms. `remove_abandoned` clears up after drivers that are gone, and touches nothing of a living one.
`remove_forcibly` is for the watchdog alone: it also ends what a paused driver executes, and what it could still start.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runners.agent.clock import now
from runners.agent.executors import scratch
from runners.agent.executors.base import ExecutorError
from runners.agent.executors.processes import identity, is_running, kill_leftovers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Record = dict[str, Any]

# A shim that was told to end needs milliseconds; one that does not listen (stopped by its own run) is killed.
SHIM_SECONDS = 2.0
POLL_SECONDS = 0.01


def remove_abandoned(labels: Mapping[str, str]) -> int:
    """Clear up after drivers that are gone, where even the shim was killed; returns how many records there were."""
    return _end([(path, found) for path, found in _records(labels) if not is_running(found["driver"])])


def remove_forcibly(labels: Mapping[str, str]) -> int:
    """End everything with all these labels, whether its driver lives or not; returns how many records there were.

    Without its directory nothing of a record can be started any more, by whatever its driver had begun.

    Raises:
        ExecutorError: something is left. The others were ended all the same.
    """
    return _end(list(_records(labels)))


def _end(found: list[tuple[Path, Record]]) -> int:
    shims = [pid for path, _ in found for pid in _shims(path)]
    for pid in shims:
        # All at once: each shim ends its run by itself, in the way that reaches whatever escaped from it.
        _signal(pid, signal.SIGUSR1)
        _signal(pid, signal.SIGCONT)
    until = now() + SHIM_SECONDS
    while any(identity(pid) for pid in shims) and now() < until:
        time.sleep(POLL_SECONDS)
    failures = [failure for path, record in found if (failure := _remove(path, record)) is not None]
    if failures:
        raise failures[0]
    return len(found)


def _remove(path: Path, record: Record) -> ExecutorError | None:
    try:
        for pid in _shims(path):
            _signal(pid, signal.SIGKILL)
        kill_leftovers(record["plan"])
    except ExecutorError as error:
        return error
    path.unlink(missing_ok=True)
    return None


def _records(labels: Mapping[str, str]) -> Iterator[tuple[Path, Record]]:
    for path in scratch.base_directory().glob("run-*.json"):
        try:
            record: Record = json.loads(path.read_text())
        except (FileNotFoundError, ValueError):
            # Removed by its shim meanwhile, or not yet written out by its living driver, which has started nothing.
            continue
        if labels.items() <= record["labels"].items():
            yield path, record


def _shims(record: Path) -> list[int]:
    """The process that was started for this record; by its command line, which is there from its first moment."""
    wanted = os.fsencode(record)
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            arguments = Path(entry.path, "cmdline").read_bytes().split(b"\0")
            # It may end between any two of these looks: a shim whose driver died is about to.
            ours = wanted in arguments and entry.stat().st_uid == os.geteuid()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if ours and identity(int(entry.name)):
            found.append(int(entry.name))
    return found


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
