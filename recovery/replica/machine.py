"""What this machine has in use, as its kernel counts it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
KIB_PER_MIB: Final = 1024
IDLE_FIELDS: Final = (3, 4)
"""Of the line `cpu` in /proc/stat: idle, and waiting for a disk."""
COUNTED_FIELDS: Final = 8
"""What follows is guest time, which user time holds already."""


class MachineReader:
    """Memory in use, and processors busy since the reading before."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._before = self._times()

    def memory_mib(self) -> int:
        """What is not available to a new program without swapping."""
        found: dict[str, int] = {}
        for line in (self._proc / "meminfo").read_text().splitlines():
            name, _, rest = line.partition(":")
            found[name] = int(rest.split()[0])
        return (found["MemTotal"] - found["MemAvailable"]) // KIB_PER_MIB

    def cpu(self) -> float | None:
        """Busy processors on average since the reading before. None: no time has passed since."""
        before, now = self._before, self._times()
        whole = sum(now[0]) - sum(before[0])
        if whole <= 0:
            return None
        self._before = now
        idle = sum(now[0][i] - before[0][i] for i in IDLE_FIELDS)
        return now[1] * max(whole - idle, 0) / whole

    def _times(self) -> tuple[list[int], int]:
        """The times of all processors together, and how many there are."""
        lines = [line.split() for line in (self._proc / "stat").read_text().splitlines() if line.startswith("cpu")]
        return [int(field) for field in lines[0][1 : 1 + COUNTED_FIELDS]], len(lines) - 1
