"""The audit of conservation (rules A5, A17): counters that differ from their permits are found and put right."""

from __future__ import annotations

import logging

from django.db import transaction

from admission.services.readings import Drift, read_drift
from admission.sql import sweeping as sql
from controlplane.core.audit import SYSTEM, record
from controlplane.core.loops import Progress
from controlplane.core.sql import execute, one

log = logging.getLogger(__name__)

BATCH = 20


def audit_conservation() -> Progress:
    """Detect in one snapshot, repair each under its counter's lock. A drift is a defect: it is logged as an error."""
    drifts = sorted(read_drift(), key=lambda d: (d.scope, d.key))
    repaired = sum(repair(drift) for drift in drifts[:BATCH])
    return Progress({"drifts": len(drifts), "repaired": repaired}, more=len(drifts) > BATCH and repaired > 0)


def repair(drift: Drift) -> bool:
    """True: the counter was wrong, and is now what its permits sum to. False: it was right by then, or has no row."""
    where = {"scope": drift.scope, "key": drift.key}
    with transaction.atomic():
        counter = one(sql.LOCK_COUNTER, where)
        held = one(sql.SUM_PERMITS, where)
        if counter is None or held is None or counter["in_flight"] == held["weight"]:
            return False
        execute(sql.SET_COUNTER, {"counter": counter["id"], "weight": held["weight"]})
        record(
            "repair",
            "counter",
            f"{drift.scope} {drift.key}",
            actor=SYSTEM,
            reason="the conservation audit found a counter that differs from its permits",
            before={"in_flight": counter["in_flight"]},
            after={"in_flight": held["weight"], "permits": held["holders"] or []},
        )
    log.error("ledger.drift", extra={**where, "was": counter["in_flight"], "permits": held["weight"]})
    return True
