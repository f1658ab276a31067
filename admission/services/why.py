"""Why is it waiting (rule A24): one answer for REST, command line and admin, from a fixed number of statements.

Nothing here locks or decides: the answer is as of its own time, and what admits is the engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from admission.driver_facts import DriverFacts, read_driver_facts
from admission.services.blockers import COUNTED, Blocker, Holder, Limit, Places, Situation, first_sentence, judge
from admission.sql import why as sql
from admission.states import HOLDING, RunState, Scope
from controlplane.core.errors import NotFound
from controlplane.core.sql import Row, one, rows

PASSED_SECONDS = 30.0
"""A pass over physical slots that is older than two intervals says nothing of the present."""

READ_HOLDERS = 200
"""Looked through for drivers that are not heard; the answer shows the oldest of them."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a queued run stands. Counts end at 10,000; `beyond` says that there are more."""

    position: int
    position_beyond: bool
    tenants_ahead: int
    tenants_ahead_beyond: bool
    weight: float
    share: float
    """Its tenant's part of the fleet while exactly those tenants have work waiting that have it now."""
    virtual_lag: float
    """How far its tenant is ahead of its share; 0 or less: it is served next."""


@dataclass(frozen=True, slots=True)
class Why:
    """The answer. `blockers` is empty for a run that waits for nothing, or does not wait."""

    run: int
    tenant: str
    state: RunState
    as_of: datetime
    sentence: str
    blockers: Sequence[Blocker] = ()
    standing: Standing | None = None
    next_look_at: datetime | None = None
    """Not before this; null: at the next look of any driver, or not until somebody acts (see the blockers)."""


def explain(run: int, *, tenant_id: int | None = None) -> Why:
    """Why this run waits, or that it does not. With a tenant: only its runs, and nothing about others' work.

    Raises:
        NotFound: no such run for this caller.
    """
    row = one(sql.READ_WAITING_RUN, {"run": run, "tenant_id": tenant_id})
    if row is None:
        raise NotFound(f"There is no run {run}.")
    state = RunState(row["state"])
    if state is not RunState.QUEUED:
        return Why(row["id"], row["tenant"], state, row["now"], _not_waiting(row, state))
    drivers = read_driver_facts()
    standing = _read_standing(row)
    limits = _read_limits(row, drivers, tenant_id)
    blockers = judge(Situation(row, limits, standing, drivers, _read_places(), for_operator=tenant_id is None))
    return Why(
        row["id"],
        row["tenant"],
        state,
        row["now"],
        first_sentence(blockers),
        tuple(blockers),
        _standing(row, standing),
        _next_look(row),
    )


def _read_places() -> dict[str, Places]:
    return {found.pop("process"): Places(**found) for found in rows(sql.READ_PLACES, {"age": PASSED_SECONDS})}


def _not_waiting(row: Row, state: RunState) -> str:
    if state not in HOLDING:
        why = f" ({row['reason'].replace('_', ' ')})" if row["reason"] else ""
        return f"It does not wait: it ended {state.label.lower()}{why} at {row['finished_at']:%Y-%m-%d %H:%M:%S} UTC."
    stopping = " It was asked to stop." if row["cancel"] else ""
    if state is RunState.RUNNING:
        return f"It does not wait: it runs on {row['driver_name']} since {row['started_at']:%H:%M:%S} UTC.{stopping}"
    until = f" before {row['start_deadline']:%H:%M:%S} UTC" if row["start_deadline"] else ""
    return f"It does not wait: {row['driver_name']} has it and starts it{until}.{stopping}"


def _needs(row: Row) -> list[tuple[Scope, str, str]]:
    """As the engine asks: (scope, key, name), the tenant's own first."""
    needs = [(Scope.TENANT, str(row["tenant_id"]), row["tenant"])] if row["has_quota"] else []
    if row["concurrency_key"]:
        needs.append((Scope.KEY, f"{row['tenant_id']}:{row['concurrency_key']}", row["concurrency_key"]))
    if row["harness"]:
        needs.append((Scope.HARNESS, row["harness"], row["harness"]))
    return needs


def _read_limits(row: Row, drivers: Sequence[DriverFacts], viewer: int | None) -> list[Limit]:
    needs = _needs(row)
    asked = {"scopes": [scope.value for scope, _, _ in needs], "keys": [key for _, key, _ in needs]}
    known = {(d.kind.value, d.id): d for d in drivers}
    holders: dict[tuple[str, str], list[Holder]] = {}
    for found in rows(sql.READ_HOLDERS, {**asked, "limit": READ_HOLDERS}):
        holders.setdefault((found["scope"], found["key"]), []).append(_holder(found, known, viewer))
    read = rows(sql.READ_LIMITS, {**asked, "limit": COUNTED + 1})
    return [
        Limit(
            scope=scope,
            key=key,
            name=name,
            limit=counter["limit"],
            in_flight=counter["in_flight"],
            holder_count=counter["holders"],
            present=counter["present"],
            holders=holders.get((scope.value, key), []),
        )
        for (scope, key, name), counter in zip(needs, read, strict=True)
    ]


def _holder(found: Row, known: Mapping[tuple[str, int], DriverFacts], viewer: int | None) -> Holder:
    mine = viewer is None or found["tenant_id"] == viewer
    driver = known.get((found["driver_kind"], found["driver_id"]))
    holder = found["holder"] if found["run_id"] else found["holder"].split(":", 2)[-1]
    return Holder(
        holder=holder if mine else "",
        tenant=found["tenant"] if mine else "",
        run=found["run_id"] if mine else None,
        attempt=found["attempt"] if mine else None,
        weight=found["weight"],
        driver=found["driver_name"] if mine else "",
        acquired_at=found["acquired_at"],
        lease_left_seconds=found["lease_left_seconds"],
        # A driver without a row is gone for good; an outside holder is nobody's to hear.
        reachable=None if found["run_id"] is None else driver is not None and driver.live,
        driver_heard_seconds_ago=driver.alive_seconds_ago if driver else None,
    )


def _read_standing(row: Row) -> Row:
    standing = one(
        sql.READ_STANDING,
        {"run": row["id"], "rank_at": row["rank_at"], "tenant_id": row["tenant_id"], "limit": COUNTED + 1},
    )
    if standing is None:
        raise NotFound(f"Tenant {row['tenant']!r} has no counter.", hint="Run: manage.py doctor")
    return standing


def _standing(row: Row, standing: Row) -> Standing | None:
    if row["delayed"]:
        return None
    return Standing(
        position=min(standing["ahead"], COUNTED) + 1,
        position_beyond=standing["ahead"] > COUNTED,
        tenants_ahead=min(standing["tenants_ahead"], COUNTED),
        tenants_ahead_beyond=standing["tenants_ahead"] > COUNTED,
        weight=row["share"],
        share=row["share"] / max(standing["shares"], row["share"]),
        virtual_lag=standing["virtual_time"] - standing["virtual_now"],
    )


def _next_look(row: Row) -> datetime | None:
    times: list[Any] = [row["not_before"] if row["delayed"] else None, row["resume_at"] if row["paused_at"] else None]
    return max((at for at in times if at is not None), default=None)
