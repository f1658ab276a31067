"""One engine, two callers: whoever can execute asks here for runs that fit; there is no other way to be admitted.

The transaction is T1 of models/README-runs-leader.md. Order of locks: driver, tenants, runs, counters. The limit is
decided by the predicate of the counter's own UPDATE in `ADMIT_RUNS`; everything before it only chooses what to offer.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import DatabaseError, transaction
from pydantic import ValidationError

from admission.drivers import Driver, DriverGone
from admission.fairness import Flow, spread
from admission.plan import Candidate, CounterRow, Plan, plan_admission
from admission.spec import RunSpec, parse_spec
from admission.sql import admitting as sql
from admission.states import Scope
from controlplane.core.conf import conf
from controlplane.core.sql import Row, execute, one, rows

log = logging.getLogger(__name__)

PAGE = 100
MAX_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Envelope:
    """What the driver could start now (rule A19). None: not bounded here."""

    slots: int
    memory_mib: int | None = None
    cpu: float | None = None


@dataclass(frozen=True, slots=True)
class Admitted:
    """One admitted run, with everything its driver needs to start it."""

    run: int
    attempt: int
    epoch: int
    tenant: str
    spec: RunSpec


@dataclass(slots=True)
class _Offer:
    """What one admitting transaction has locked so far."""

    share: dict[int, float] = field(default_factory=dict)
    slug: dict[int, str] = field(default_factory=dict)
    has_quota: dict[int, bool] = field(default_factory=dict)
    candidates: list[Candidate] = field(default_factory=list)
    broken: dict[int, str] = field(default_factory=dict)
    empty: list[int] = field(default_factory=list)
    """Counters of tenants that had nothing to offer."""

    def taken(self) -> list[int]:
        return [c.run for c in self.candidates] + list(self.broken)


def admit(driver: Driver, envelope: Envelope) -> list[Admitted]:
    """Admit up to `envelope.slots` queued runs to this driver, in fair order, and return them.

    Raises:
        DriverGone: it may not be given work any more.
        DatabaseError: nothing is known to be admitted; the next drain takes up what was (rule A10).
    """
    envelope = _bounded(envelope)
    if envelope.slots <= 0:
        return []
    flows = read_flows(driver, offset=0)
    if not flows:
        return []
    try:
        return _admit_from(driver, envelope, flows)
    except DatabaseError:
        # One tenant's broken row must not stop the others (rule A22): each is tried in a transaction of its own.
        log.exception("admission.batch_failed", extra={"driver": driver.name})
        return _admit_one_by_one(driver, envelope, flows)


def read_flows(driver: Driver, *, offset: int) -> list[Row]:
    """The reading of rule A2: a page of tenants with work and headroom, fairest first. No locks, no decision."""
    parameters = {"only_tenant": driver.tenant_id, "page": PAGE, "offset": offset}
    return rows(sql.READ_FAIR_ORDER, parameters)


def _bounded(envelope: Envelope) -> Envelope:
    slots = min(envelope.slots, conf().admission_batch)
    return Envelope(slots, envelope.memory_mib, envelope.cpu)


def _admit_one_by_one(driver: Driver, envelope: Envelope, flows: Sequence[Row]) -> list[Admitted]:
    admitted: list[Admitted] = []
    for flow in flows:
        left = envelope.slots - len(admitted)
        if left <= 0:
            break
        try:
            admitted += _admit_from(driver, Envelope(left, envelope.memory_mib, envelope.cpu), [flow], more=False)
        except DatabaseError:
            # Fail closed for this tenant (rule A13): its runs stay queued for the next drain.
            log.exception("admission.tenant_failed", extra={"tenant_id": flow["tenant_id"]})
    return admitted


def _admit_from(driver: Driver, envelope: Envelope, page: Sequence[Row], *, more: bool = True) -> list[Admitted]:
    offer = _Offer()
    with transaction.atomic():
        if not driver.lock():
            raise DriverGone(driver.name)
        offset = 0
        while page:
            _gather(driver, envelope, page, offer)
            if not more or len(offer.candidates) >= envelope.slots or len(page) < PAGE:
                break
            # Only tenants whose runs do not suit this driver came first: look further, or they would hide the others.
            offset += len(page)
            page = read_flows(driver, offset=offset)
        if offer.broken:
            execute(sql.SET_ASIDE, {"runs": list(offer.broken), "details": list(offer.broken.values())})
        admitted = _write(driver, envelope, offer) if offer.candidates else []
    for counter in offer.empty:
        clear_backlog(counter)
    return admitted


def _gather(driver: Driver, envelope: Envelope, page: Sequence[Row], offer: _Offer) -> None:
    """Lock the page's tenants and as many of their runs as fair order would give them."""
    locked = {t["id"]: t for t in rows(sql.LOCK_TENANTS, {"tenants": [f["tenant_id"] for f in page]})}
    flows: dict[int, Flow] = {}
    for order, row in enumerate(page):
        tenant = locked.get(row["tenant_id"])
        if tenant is None:
            continue
        key = tenant["id"]
        offer.share[key], offer.slug[key], offer.has_quota[key] = tenant["share"], tenant["slug"], tenant["has_quota"]
        headroom = row["headroom"] if tenant["has_quota"] else None
        flows[key] = Flow(key, row["virtual_time"], tenant["share"], order, headroom)
    counters = {row["tenant_id"]: row["counter_id"] for row in page}
    virtual_now = page[0]["virtual_now"]
    seen: set[int] = set()
    for _ in range(MAX_ROUNDS):
        missing = envelope.slots - len(offer.candidates)
        asked = spread(flows.values(), missing, virtual_now)
        if not asked:
            break
        found = _pick(driver, envelope, asked, offer)
        for tenant_id, count in asked.items():
            if found.get(tenant_id, 0) < count:
                del flows[tenant_id]
                if not found.get(tenant_id) and tenant_id not in seen:
                    offer.empty.append(counters[tenant_id])
            elif (flow := flows[tenant_id]).headroom is not None:
                flow.headroom -= count
                if flow.headroom <= 0:
                    del flows[tenant_id]
            seen.add(tenant_id)


def _pick(driver: Driver, envelope: Envelope, asked: dict[int, int], offer: _Offer) -> dict[int, int]:
    """Lock the next runs of each tenant; returns how many rows each had (broken ones count)."""
    picked = rows(
        sql.PICK_RUNS,
        {
            "tenants": list(asked),
            "counts": list(asked.values()),
            "labels": json.dumps(dict(driver.labels)),
            "backends": list(driver.backends),
            "memory_mib": envelope.memory_mib,
            "cpu": envelope.cpu,
            "taken": offer.taken(),
        },
    )
    found: dict[int, int] = {}
    for row in picked:
        found[row["tenant_id"]] = found.get(row["tenant_id"], 0) + 1
        try:
            spec = parse_spec(_json(row["spec"]))
        except ValidationError as error:
            offer.broken[row["id"]] = str(error)
            continue
        offer.candidates.append(_candidate(row, spec, offer.has_quota[row["tenant_id"]]))
    return found


def _json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _candidate(row: Row, spec: RunSpec, has_quota: bool) -> Candidate:
    needs = []
    if row["harness"]:
        needs.append((Scope.HARNESS.value, row["harness"]))
    if row["concurrency_key"]:
        needs.append((Scope.KEY.value, f"{row['tenant_id']}:{row['concurrency_key']}"))
    if has_quota:
        needs.append((Scope.TENANT.value, str(row["tenant_id"])))
    return Candidate(
        run=row["id"],
        tenant_id=row["tenant_id"],
        rank=(row["rank_at"], row["id"]),
        weight=row["weight"],
        memory_mib=row["memory_mib"],
        cpu=row["cpu"],
        needs=tuple(needs),
        spec=spec,
    )


def _lock_counters(candidates: Iterable[Candidate]) -> list[CounterRow]:
    wanted = {need for c in candidates for need in c.needs}
    wanted |= {(Scope.TENANT.value, str(c.tenant_id)) for c in candidates}
    ordered = sorted(wanted)
    found = rows(sql.LOCK_COUNTERS, {"scopes": [s for s, _ in ordered], "keys": [k for _, k in ordered]})
    return [CounterRow(**row) for row in found]


def _write(driver: Driver, envelope: Envelope, offer: _Offer) -> list[Admitted]:
    plan = plan_admission(
        offer.candidates,
        _lock_counters(offer.candidates),
        offer.share,
        slots=envelope.slots,
        memory_mib=envelope.memory_mib,
        cpu=envelope.cpu,
        virtual_now=_virtual_now(),
    )
    if not plan.chosen:
        return []
    written = rows(sql.ADMIT_RUNS, _parameters(driver, plan))
    counted = written[0]["counted"] if written else 0
    if counted != len(plan.steps) or len(written) != len(plan.chosen):
        # Cannot happen while the counters are locked; if it does, nothing may stand (rule G3).
        raise DatabaseError(f"admission wrote {len(written)} runs and {counted} counters of {plan!r}")
    chosen = {c.run: c for c in plan.chosen}
    return [
        Admitted(
            run=row["id"],
            attempt=row["attempt"],
            epoch=row["epoch"],
            tenant=offer.slug[chosen[row["id"]].tenant_id],
            spec=chosen[row["id"]].spec,
        )
        for row in written
    ]


def _virtual_now() -> float:
    row = one(sql.READ_VIRTUAL_NOW)
    return float(row["virtual_now"]) if row else 0.0


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
        "incarnation": driver.incarnation,
        "driver_name": driver.name,
        "start_deadline_seconds": settings.start_deadline_seconds,
        "lease_seconds": driver.lease_seconds,
        "lapse_seconds": settings.permit_lapse_seconds,
    }


def clear_backlog(counter: int) -> bool:
    """Take a tenant with nothing queued out of the fair order. Safe against submits under way; False: left alone."""
    with transaction.atomic():
        if one(sql.LOCK_BACKLOG, {"counter": counter}) is None:
            return False
        return bool(rows(sql.CLEAR_BACKLOG, {"counter": counter}))
