"""What a machine has in use, by stored samples (rule A19): unknown is no headroom there, and the others go on."""

from __future__ import annotations

from dataclasses import dataclass

from admission.drivers import Driver
from admission.sql import probes as sql
from admission.states import DriverKind
from controlplane.core.conf import conf
from controlplane.core.sql import Row, execute, one

TICKS = 2
"""A sample older than so many ticks says nothing."""


FORGOTTEN_TICKS = 100


@dataclass(frozen=True, slots=True)
class Sample:
    """What a driver read of its machine. `cpu` null: there was no second reading to compare with."""

    machine: str
    slots: int
    memory_mib: int
    cpu: float | None


@dataclass(frozen=True, slots=True)
class Use:
    """In use for one driver: max(sample, own in flight), and what others on its machine were given and not created."""

    slots: int
    memory_mib: int
    cpu: float | None


def max_age() -> float:
    """Seconds after which a sample is unknown."""
    return TICKS * conf().probe_seconds


def record_probe(driver: Driver, sample: Sample) -> None:
    """Store this driver's latest sample, and drop those of drivers of its machine that ended without a word."""
    read = {"machine": sample.machine, "slots": sample.slots, "memory_mib": sample.memory_mib, "cpu": sample.cpu}
    execute(sql.RECORD_PROBE, {**driver.identity(), **read})
    execute(sql.FORGET_OLD_PROBES, {"machine": sample.machine, "age": FORGOTTEN_TICKS * conf().probe_seconds})


def forget_probe(kind: DriverKind, driver_id: int) -> None:
    """The driver is gone, and what it used with it."""
    execute(sql.FORGET_PROBE, {"driver_kind": kind.value, "driver_id": driver_id})


def lock_machine(machine: str) -> None:
    """Hold off admissions of the other drivers of this machine until this transaction ends."""
    execute(sql.LOCK_MACHINE, {"machine": machine})


def read_use(driver: Driver, machine: str) -> Use | None:
    """None: unknown. The driver is given nothing until a sample is fresh again."""
    row = one(sql.READ_USE, {**driver.identity(), "machine": machine, "age": max_age()})
    if row is None:
        return None
    cpu = row["cpu_sampled"]
    return Use(
        slots=max(row["slots_sampled"], row["slots_own"]),
        memory_mib=int(_used(row, "memory", row["memory_sampled"])),
        cpu=None if cpu is None else _used(row, "cpu", cpu),
    )


def _used(row: Row, what: str, sampled: float) -> float:
    """Own work that the sample cannot show yet comes on top of it, as that of the others on the machine does."""
    seen = max(sampled + row[f"{what}_own_unseen"], row[f"{what}_own"])
    return float(seen + row[f"{what}_others_unseen"])
