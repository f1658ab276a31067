"""Faults, one after another, and whether each gap in a loop's due times lies within the bound of one."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from leadership.belief import now
from tests.leadership.world import World, until

Gap = tuple[float, float]
Fault = tuple[str, float, float]
"""Its name, the wall-clock time at which it began, and how long a gap it explains."""


class Storm:
    """What is done to a world."""

    def __init__(self, world: World, *, bound: float, restart_bound: float = 0.0, calm: float = 4.0) -> None:
        self.world = world
        self.bound, self.restart_bound, self.calm = bound, restart_bound, calm
        self.faults: list[Fault] = []
        self.took: dict[str, list[float]] = {}

    def _note(self, name: str, gone: float, began: float, bound: float) -> None:
        self.faults.append((name, began, bound))
        first = until(lambda: [x["acted"] for x in self.world.lines() if x.get("acted", 0) > gone + 0.1], name)
        self.took.setdefault(name, []).append(min(first) - gone)
        time.sleep(self.calm)

    def kill(self) -> None:
        name = self.world.leader()
        self.world.kill(name)
        gone, began = now(), time.time()
        self.world.revive(name)
        self._note("kill", gone, began, self.bound)

    def pause(self) -> None:
        process = self.world.processes[self.world.leader()]
        process.send_signal(signal.SIGSTOP)
        self._note("pause", now(), time.time(), self.bound)
        process.send_signal(signal.SIGCONT)

    def restart_database(self, server: Any) -> None:
        gone, began = now(), time.time()
        server.stop()
        server.start()
        self._note("restart", gone, began, self.restart_bound)


def gaps(due: Sequence[datetime], period: float) -> list[Gap]:
    """Where due times are missing: the last before and the first after."""
    times = sorted(d.astimezone(UTC).timestamp() for d in due)
    return [(a, b) for a, b in pairwise(times) if b - a > 1.5 * period]


def unexplained(found: Sequence[Gap], faults: Sequence[Fault], period: float) -> list[Gap]:
    """Gaps that began earlier than just before a fault, or were not over within that fault's bound."""
    return [
        gap
        for gap in found
        if not any(gap[0] >= at - 2 * period and gap[1] <= at + bound + period for _, at, bound in faults)
    ]
