"""What is known of the drivers, for an app that may not import those who keep them.

The apps above register here, in `ready()`, how their drivers are read: one bounded statement each. `why` judges by it;
admission itself never does, for a driver proves itself by its own row inside the admitting transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from admission.states import DriverKind

MOST_DRIVERS = 2000
"""Of one kind, those heard last."""


@dataclass(frozen=True, slots=True)
class DriverFacts:
    """One driver as its row stands. `live`: heard within its window and neither dead nor revoked."""

    kind: DriverKind
    id: int
    name: str
    slots: int
    held: int
    live: bool
    gone: bool = False
    """Revoked, declared dead or used up: it never takes anything again."""
    draining: bool = False
    """Drained or paused: it is given nothing."""
    alive_seconds_ago: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    backends: tuple[str, ...] = ()
    tenant_id: int | None = None
    """Serves this tenant alone."""
    memory_mib: int = 0
    cpu: float = 0.0
    """Its envelope; 0: not bounded."""
    free_memory_mib: int | None = None
    free_cpu: float | None = None
    """What its machine has left of the envelope by the latest sample; null: not bounded."""

    @property
    def serves(self) -> bool:
        """Whether it is given work at all."""
        return self.live and not self.draining

    def full(self, memory_mib: int, cpu: float) -> bool:
        """Whether it could not take a run of this size now."""
        if self.free_memory_mib is not None and memory_mib > self.free_memory_mib:
            return True
        return self.held >= self.slots or (self.free_cpu is not None and cpu > self.free_cpu)


Provider = Callable[[int], list[DriverFacts]]
"""Reads at most so many drivers, those heard last first, in one statement."""

_providers: dict[DriverKind, Provider] = {}


def register_driver_facts(kind: DriverKind, provider: Provider) -> None:
    """Called once per kind when its app is ready."""
    _providers[kind] = provider


def read_driver_facts() -> list[DriverFacts]:
    """All drivers, one statement per kind."""
    return [facts for kind in sorted(_providers) for facts in _providers[kind](MOST_DRIVERS)]
