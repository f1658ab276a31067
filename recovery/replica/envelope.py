"""A replica's envelope on its machine (rule A19): it samples, and asks for no more than the machine has left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from admission.drivers import Driver
from admission.engine import Envelope
from admission.services.probes import Sample, Use, lock_machine, read_use, record_probe
from controlplane.core.conf import conf
from recovery.replica.machine import MachineReader
from runners.agent.assignment import Capacity


class MachineEnvelope:
    """Samples always, so that the other replicas of the machine see it; bounds only where the settings say so."""

    def __init__(
        self, driver: Driver, machine: str, held: Callable[[], int], reader: MachineReader | None = None
    ) -> None:
        settings = conf()
        self._driver = driver
        self._machine = machine
        self._held = held
        self._reader = reader or MachineReader()
        self._slots = settings.replica_slots
        self._memory_mib = settings.replica_memory_mib
        self._cpu = settings.replica_cpu

    def bounding(self) -> Driver:
        """The driver, which inside each admission is given no more than the machine has left by then."""
        bounded = self._memory_mib or self._cpu
        return replace(self._driver, narrow=self._narrow_alone) if bounded else self._driver

    def _narrow_alone(self, asked: Envelope) -> Envelope:
        """`narrow` with the machine locked: what others there were given since the first reading is counted."""
        lock_machine(self._machine)
        left = self.narrow(Capacity(asked.slots, asked.memory_mib, asked.cpu))
        return Envelope(left.slots, left.memory_mib, left.cpu)

    def sample(self) -> None:
        """One tick: read the machine, store what was read."""
        read = Sample(self._machine, self._held(), self._reader.memory_mib(), self._reader.cpu())
        record_probe(self._driver, read)

    def narrow(self, free: Capacity) -> Capacity:
        """What is free by the driver's own count, less what its machine has not. Unknown: nothing."""
        if not (self._memory_mib or self._cpu) or free.slots <= 0:
            return free
        use = read_use(self._driver, self._machine)
        return Capacity(0) if use is None else self._left(free, use)

    def _left(self, free: Capacity, use: Use) -> Capacity:
        memory, cpu = free.memory_mib, free.cpu
        if self._memory_mib:
            left = self._memory_mib - use.memory_mib
            memory = left if memory is None else min(memory, left)
        if self._cpu:
            if use.cpu is None:
                return Capacity(0)
            cpu = self._cpu - use.cpu if cpu is None else min(cpu, self._cpu - use.cpu)
        full = (memory is not None and memory <= 0) or (cpu is not None and cpu <= 0)
        return Capacity(0 if full else min(free.slots, self._slots - use.slots), memory, cpu)
