"""One engine, two callers: whoever can execute asks here for runs that fit; there is no other way to be admitted.

The transaction is T1 of models/README-runs-leader.md. Order of locks: driver, tenants, runs, counters. The limit is
decided by the predicate of the counter's own UPDATE in `ADMIT_RUNS`; everything before it only chooses what to offer.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from django.db import DatabaseError, connection, transaction

from admission.drivers import Driver, DriverGone, Note
from admission.picking import Envelope, Offer, gather
from admission.plan import Candidate, CounterRow, Plan, plan_admission
from admission.services.reaping import reap_refusing
from admission.spec import RunSpec
from admission.sql import admitting as sql
from admission.states import Scope
from controlplane.core.conf import conf
from controlplane.core.sql import Row, execute, rows

log = logging.getLogger(__name__)

__all__ = ["Admitted", "Envelope", "admit", "clear_backlogs", "read_flows"]

LARGEST_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Admitted:
    """One admitted run, with everything its driver needs to start it."""

    run: int
    attempt: int
    epoch: int
    tenant: str
    spec: RunSpec


def admit(driver: Driver, envelope: Envelope, seen: Sequence[Row] = ()) -> list[Admitted]:
    """Admit up to `envelope.slots` queued runs to this driver, in fair order, and return them.

    `seen`: a reading that the caller has just made; only where it gives nothing another is made.

    A driver that got less than it could start looks whether lapsed permits kept it from more (rule A12). Not inside a
    caller's transaction: that one holds runs, and the reap would lock others after them. Not for one that takes note:
    what it notes is one transaction's.

    Raises:
        DriverGone: it may not be given work any more.
        DatabaseError: nothing is known to be admitted; the next drain takes up what was (rule A10).
    """
    envelope = _bounded(envelope)
    admitted = _admit(driver, envelope, seen)
    if len(admitted) < envelope.slots and driver.note is None and not connection.in_atomic_block:
        admitted += _admit_what_lapsed(driver, _left(envelope, admitted), known=bool(admitted))
    return admitted


def _admit_what_lapsed(driver: Driver, left: Envelope, *, known: bool) -> list[Admitted]:
    try:
        return _admit(driver, left) if reap_refusing() else []
    except (DatabaseError, DriverGone):
        if not known:
            raise
        # What was admitted before stands, and its driver must hear of it.
        log.exception("admission.reap_failed", extra={"driver": driver.name})
        return []


def _admit(driver: Driver, envelope: Envelope, seen: Sequence[Row] = ()) -> list[Admitted]:
    if envelope.slots <= 0:
        return []
    if seen and (admitted := _admit_among(driver, envelope, seen)):
        return admitted
    # Few tenants for few slots: what one admission reads does not depend on how many tenants wait.
    flows = read_flows(driver, page=2 * envelope.slots + 8)
    return _admit_among(driver, envelope, flows) if flows else []


def _admit_among(driver: Driver, envelope: Envelope, flows: Sequence[Row]) -> list[Admitted]:
    session = connection.connection
    try:
        admitted, empty = _admit_from(driver, envelope, flows)
    except DatabaseError:
        if connection.connection is not session:
            # The commit itself may have been answered into the void: asking for more now could give the driver twice
            # what it can start.
            raise
        # One tenant's broken row must not stop the others (rule A22): each is tried in a transaction of its own.
        log.exception("admission.batch_failed", extra={"driver": driver.name})
        admitted, empty = _admit_one_by_one(driver, envelope, flows)
    _clear_empty(empty)
    return admitted


def read_flows(driver: Driver, *, page: int, offset: int = 0) -> list[Row]:
    """The reading of rule A2: a page of tenants with work and headroom, fairest first. No locks, no decision."""
    return rows(sql.READ_FAIR_ORDER, {"only_tenant": driver.tenant_id, "page": page, "offset": offset})


def _bounded(envelope: Envelope) -> Envelope:
    slots = min(envelope.slots, conf().admission_batch)
    return Envelope(slots, envelope.memory_mib, envelope.cpu)


def _admit_one_by_one(driver: Driver, envelope: Envelope, flows: Sequence[Row]) -> tuple[list[Admitted], list[int]]:
    admitted: list[Admitted] = []
    empty: list[int] = []
    session = connection.connection
    for flow in flows:
        left = _left(envelope, admitted)
        if left.slots <= 0 or (admitted and driver.note is not None):
            break
        try:
            more, without = _admit_from(driver, left, [flow], further=False)
        except DatabaseError:
            if connection.connection is not session:
                raise
            # Fail closed for this tenant (rule A13): its runs stay queued for the next drain.
            log.exception("admission.tenant_failed", extra={"tenant_id": flow["tenant_id"]})
            continue
        admitted += more
        empty += without
    return admitted, empty


def _left(envelope: Envelope, admitted: Sequence[Admitted]) -> Envelope:
    resources = [a.spec.resources for a in admitted]
    memory, cpu = envelope.memory_mib, envelope.cpu
    return Envelope(
        envelope.slots - len(admitted),
        None if memory is None else memory - sum(r.memory_mib for r in resources),
        None if cpu is None else cpu - sum(r.cpu for r in resources),
    )


def _admit_from(
    driver: Driver, envelope: Envelope, flows: Sequence[Row], *, further: bool = True
) -> tuple[list[Admitted], list[int]]:
    """One transaction. Returns what was admitted, and the counters of tenants that had nothing to offer."""
    offer = Offer()
    with transaction.atomic():
        if not driver.lock():
            raise DriverGone(driver.name)
        if driver.narrow is not None:
            envelope = driver.narrow(envelope)
        page, offset = 2 * envelope.slots + 8, 0
        while flows and envelope.slots > 0:
            gather(driver, envelope, flows, offer)
            if not further or len(offer.candidates) >= envelope.slots or len(flows) < page:
                break
            # Only tenants whose runs do not suit this driver came first: look further, or they would hide the others.
            offset += page
            page = min(4 * page, LARGEST_PAGE)
            flows = read_flows(driver, page=page, offset=offset)
        if offer.broken:
            execute(sql.SET_ASIDE, {"runs": list(offer.broken), "details": list(offer.broken.values())})
        admitted = _write(driver, envelope, offer) if offer.candidates else []
        if not admitted and driver.note is not None:
            _forget(driver.note, offer)
    return admitted, offer.empty


def _forget(note: Note, offer: Offer) -> None:
    """Undo what was written for a claim that gets nothing: no commit to wait for, unless something else stands."""
    if offer.broken:
        note.forget()
    else:
        transaction.set_rollback(True)


def _clear_empty(counters: Sequence[int]) -> None:
    try:
        clear_backlogs(counters)
    except DatabaseError:
        # The runs are admitted and their driver must hear of them; an empty tenant in the order costs one look.
        log.exception("admission.clear_backlog_failed")


def _lock_counters(candidates: Sequence[Candidate]) -> tuple[list[CounterRow], float]:
    """The counters that these runs need, locked in order, and V of the fair order."""
    wanted = {need for c in candidates for need in c.needs}
    wanted |= {(Scope.TENANT.value, str(c.tenant_id)) for c in candidates}
    found = rows(sql.LOCK_COUNTERS, {"scopes": [s for s, _ in wanted], "keys": [k for _, k in wanted]})
    virtual_now = max((row.pop("virtual_now") for row in found), default=0.0)
    return [CounterRow(**row) for row in found], virtual_now


def _write(driver: Driver, envelope: Envelope, offer: Offer) -> list[Admitted]:
    counters, virtual_now = _lock_counters(offer.candidates)
    plan = plan_admission(
        offer.candidates,
        counters,
        offer.share,
        slots=envelope.slots,
        memory_mib=envelope.memory_mib,
        cpu=envelope.cpu,
        virtual_now=virtual_now,
    )
    if not plan.chosen:
        return []
    statement = sql.ADMIT_RUNS if driver.note is None else driver.note.statement
    written = rows(statement, _parameters(driver, plan))
    counted = written[0]["counted"] if written else 0
    if counted != len(plan.steps) or len(written) != len(plan.chosen):
        # Cannot happen while the counters are locked; if it does, nothing may stand (rule G3).
        raise DatabaseError(f"admission wrote {len(written)} runs and {counted} counters of {plan!r}")
    by_run = {row["id"]: row for row in written}
    # In the plan's order, not the statement's: the driver starts the fairest first, and a repeat reads the same.
    return [
        Admitted(
            run=c.run,
            attempt=by_run[c.run]["attempt"],
            epoch=by_run[c.run]["epoch"],
            tenant=offer.slug[c.tenant_id],
            spec=c.spec,
        )
        for c in plan.chosen
    ]


def _parameters(driver: Driver, plan: Plan) -> dict[str, object]:
    settings = conf()
    return {
        "counters": [s.counter for s in plan.steps],
        "weights": [s.weight for s in plan.steps],
        "virtual_times": [s.virtual_time for s in plan.steps],
        "start_tags": [s.start_tag for s in plan.steps],
        "runs": [c.run for c in plan.chosen],
        "needs_run": [c.run for c in plan.chosen for _ in c.needs],
        "needs_scope": [scope for c in plan.chosen for scope, _ in c.needs],
        "needs_key": [key for c in plan.chosen for _, key in c.needs],
        **driver.identity(),
        **(driver.note.parameters if driver.note is not None else {}),
        "incarnation": driver.incarnation,
        "driver_name": driver.name,
        "start_deadline_seconds": settings.start_deadline_seconds,
        "lease_seconds": driver.lease_seconds,
        "lapse_seconds": settings.permit_lapse_seconds,
    }


def clear_backlogs(counters: Sequence[int]) -> int:
    """Take tenants with nothing queued out of the fair order; how many. Safe against submits under way."""
    if not counters:
        return 0
    with transaction.atomic():
        locked = [row["id"] for row in rows(sql.LOCK_BACKLOGS, {"counters": list(counters)})]
        return len(rows(sql.CLEAR_BACKLOGS, {"counters": locked})) if locked else 0
