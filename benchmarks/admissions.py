"""Admissions of runs: batches of a hundred against single ones, per permit.

Mix: ten tenants with a quota each, equal shares, a hundred and more runs queued for each; what was admitted is given
back outside of the measured time. A single admission is what a driver with one free slot asks for.
"""

from __future__ import annotations

import time

from django.db import connection

from admission.drivers import Driver
from admission.engine import Envelope, admit
from admission.services.runs import give_back
from benchmarks.report import Row, interleaved
from tests.ledger import make_driver, make_tenant, submit

TENANTS = 10
QUEUED = 400
BATCH = 100
BAR = 15.0


def measure(*, rounds: int) -> list[Row]:
    """One row."""
    for _ in range(TENANTS):
        submit(make_tenant(BATCH), QUEUED)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE admission_run, admission_counter, admission_permit, admission_tenant")
    driver = make_driver()
    for slots in (1, BATCH):
        seconds_per_permit(driver, slots, calls=3)
    batched, single = interleaved(
        rounds,
        lambda: seconds_per_permit(driver, BATCH, calls=10),
        lambda: seconds_per_permit(driver, 1, calls=100),
    )
    ratios = sorted(one / many for many, one in zip(batched, single, strict=True))
    ratio = ratios[len(ratios) // 2]
    return [
        Row(
            f"admission per permit: batch of {BATCH} against single ones, {TENANTS} tenants with quotas",
            ratio,
            f"≥ {BAR:.0f}",
            ratio >= BAR,
            f"{1 / sorted(batched)[rounds // 2]:,.0f} permits/s",
            f"{1 / sorted(single)[rounds // 2]:,.0f} permits/s",
            f"{ratios[0]:.1f}-{ratios[-1]:.1f}",
        )
    ]


def seconds_per_permit(driver: Driver, slots: int, *, calls: int) -> float:
    """The time of `calls` admissions by the permits they gave; what they gave goes back unmeasured."""
    spent, permits = 0.0, 0
    for _ in range(calls):
        began = time.perf_counter()
        admitted = admit(driver, Envelope(slots))
        spent += time.perf_counter() - began
        assert len(admitted) == slots
        permits += slots
        give_back(driver, [(a.run, a.epoch) for a in admitted], "benchmark", drained=True)
    return spent / permits
