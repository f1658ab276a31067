"""The ledger's side of an adoption: whose row it is from now on (T7, "adopted")."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import transaction

from admission.drivers import Driver
from admission.services.runs import Cause, Hold, adopt_runs
from controlplane.core.sql import one
from recovery import sql
from recovery.services.orphans import Dead, Orphan

DRIVER_GONE = Cause("driver_dead", sql.DRIVER_GONE)


def claim_orphans(driver: Driver, dead: Dead, orphans: Sequence[Orphan]) -> dict[Hold, Hold]:
    """Those of a dead incarnation's started runs that are this replica's now: the new hold for each old one.

    What is missing has moved on, was never started, or its driver is not dead after all. Nothing is there if this
    replica was declared dead itself.
    """
    if not orphans:
        return {}
    with transaction.atomic():
        if one(sql.LOCK_ADOPTER, {"replica": driver.id}) is None:
            return {}
        holds = [(orphan.run, orphan.epoch) for orphan in orphans]
        return adopt_runs(driver, holds, DRIVER_GONE, parameters={"dead": dead.id})
