"""Picking what to offer: tenants in fair order, then as many of their runs as that order would give them.

Everything is locked as it is picked, nothing is decided: the plan under the counters' locks decides. A run that does
not fit by the reading is not offered, or it would stand in the way of another tenant's at every drain.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import ValidationError

from admission.drivers import Driver
from admission.fairness import Flow, spread
from admission.plan import Candidate
from admission.references import missing_references
from admission.spec import BACKENDS, RunSpec, parse_spec
from admission.sql import admitting as sql
from admission.states import Scope
from controlplane.core.sql import Row, rows

MAX_ROUNDS = 8
WIDER = 16


@dataclass(frozen=True, slots=True)
class Envelope:
    """What the driver could start now (rule A19). None: not bounded here."""

    slots: int
    memory_mib: int | None = None
    cpu: float | None = None


@dataclass(slots=True)
class Offer:
    """What one admitting transaction has locked so far."""

    share: dict[int, float] = field(default_factory=dict)
    slug: dict[int, str] = field(default_factory=dict)
    has_quota: dict[int, bool] = field(default_factory=dict)
    candidates: list[Candidate] = field(default_factory=list)
    broken: dict[int, str] = field(default_factory=dict)
    passed: list[int] = field(default_factory=list)
    """Runs that do not fit by the reading."""
    empty: list[int] = field(default_factory=list)
    """Counters of tenants that had nothing to offer."""

    def taken(self) -> list[int]:
        """Runs not to be picked again."""
        return [c.run for c in self.candidates] + list(self.broken) + self.passed


def gather(driver: Driver, envelope: Envelope, page: Sequence[Row], offer: Offer) -> None:
    """Lock runs of this page's tenants until the envelope's slots could be filled, or nothing is left to ask."""
    flows = {
        row["tenant_id"]: Flow(
            row["tenant_id"], row["virtual_time"], row["share"], order, headroom=row["headroom"], limit=row["limit"]
        )
        for order, row in enumerate(page)
    }
    counters = {row["tenant_id"]: row["counter_id"] for row in page}
    offer.share.update({tenant: flow.share for tenant, flow in flows.items()})
    wider = 0
    for _ in range(MAX_ROUNDS):
        missing = envelope.slots - len(offer.candidates)
        if missing <= 0 or not flows:
            break
        asked = spread(flows.values(), max(missing, wider), page[0]["virtual_now"])
        # After a round that found too little more tenants are asked at once: any number may have nothing that suits.
        wider = max(WIDER, 4 * wider)
        found = _pick(driver, envelope, asked, flows, offer) if asked else {}
        for tenant, count in asked.items():
            if found.get(tenant) == 0:
                offer.empty.append(counters[tenant])
            if found.get(tenant, 0) < count:
                flows.pop(tenant, None)


def _pick(
    driver: Driver, envelope: Envelope, asked: dict[int, int], flows: dict[int, Flow], offer: Offer
) -> dict[int, int]:
    """Lock each tenant and its next runs; returns how many rows each had, whatever became of them.

    A tenant that is missing may not be served now, and leaves this admission.
    """
    answer = rows(
        sql.PICK_RUNS,
        {
            "tenants": list(asked),
            "counts": list(asked.values()),
            "labels": json.dumps(dict(driver.labels)),
            "backends": list(driver.backends),
            "known_backends": list(BACKENDS),
            "memory_mib": envelope.memory_mib,
            "cpu": envelope.cpu,
            "taken": offer.taken(),
        },
    )
    found: dict[int, int] = {}
    for row in answer:
        found.setdefault(row["tenant_id"], 0)
        offer.slug[row["tenant_id"]], offer.has_quota[row["tenant_id"]] = row["slug"], row["has_quota"]
    picked = [row for row in answer if row["id"] is not None]
    for row, spec in zip(picked, _parse_all(picked), strict=True):
        tenant = row["tenant_id"]
        found[tenant] += 1
        if isinstance(spec, str):
            offer.broken[row["id"]] = spec
            continue
        if tenant not in flows or not _fits(row["weight"], flows[tenant]):
            offer.passed.append(row["id"])
            # A heavy run first in line keeps its place; one that never fits (quota lowered below it) is passed over.
            if tenant in flows and flows[tenant].may_ever_hold(row["weight"]):
                del flows[tenant]
            continue
        offer.candidates.append(_candidate(row, spec, offer.has_quota[tenant]))
    return found


def _fits(weight: int, flow: Flow) -> bool:
    if flow.headroom is None:
        return True
    if weight > flow.headroom:
        return False
    flow.headroom -= weight
    return True


def _parse_all(picked: Sequence[Row]) -> list[RunSpec | str]:
    """As `_parse`, for each; a specification that names what is not there (a deleted secret) is broken too."""
    parsed = [_parse(row) for row in picked]
    sound = [(place, spec) for place, spec in enumerate(parsed) if isinstance(spec, RunSpec)]
    missing = missing_references([(picked[place]["tenant_id"], spec) for place, spec in sound])
    for (place, _), (named, sentence) in zip(sound, missing, strict=True):
        if sentence:
            parsed[place] = f"{named}: {sentence}"
    return parsed


def _parse(row: Row) -> RunSpec | str:
    """The specification, or which fields are wrong and why; never their values, which may be secrets."""
    value = row["spec"]
    try:
        spec = parse_spec(json.loads(value) if isinstance(value, str) else value)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
        return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in found)[:4000]
    if row["backend"] not in ("", *BACKENDS):
        return f"backend: there is none of this name; known: {', '.join(BACKENDS)}"
    return spec


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
