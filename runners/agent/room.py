"""What a machine has left for runs beside those that it holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from runners.agent.assignment import Capacity

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runners.agent.holds import Hold


@dataclass(frozen=True, slots=True)
class Room:
    """Slots, memory and processors of one driver. None: not bounded here."""

    slots: int
    memory_mib: int | None = None
    cpu: float | None = None

    @property
    def is_bounded(self) -> bool:
        """By more than slots: then what one run leaves may be just what another waits for."""
        return self.memory_mib is not None or self.cpu is not None

    def free(self, holds: Iterable[Hold]) -> Capacity:
        """What a claim may ask for."""
        held = [hold.assignment.spec.resources for hold in holds]
        memory = None if self.memory_mib is None else max(0, self.memory_mib - sum(r.memory_mib for r in held))
        cpu = None if self.cpu is None else max(0.0, self.cpu - sum(r.cpu for r in held))
        full = memory == 0 or cpu == 0
        return Capacity(0 if full else self.slots - len(held), memory, cpu)
