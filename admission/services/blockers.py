"""What keeps a queued run from being admitted, judged from what was read: pure functions, no database.

Order of decisiveness: what no free slot would help first (its tenant does not run, its time has not come, its limit is
zero), then that nobody could execute it, then limits that are full, then drivers that are, then its place in line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from admission.driver_facts import DriverFacts
from admission.states import DriverKind, Scope
from controlplane.core.sql import Row

SHOWN_HOLDERS = 20
COUNTED = 10_000
"""Positions and holders are counted up to here; one more means: beyond."""


class Code(StrEnum):
    """Why a run waits. New kinds of limits add their own."""

    DELETING = "tenant_deleting"
    EXPIRED = "queue_deadline_passed"
    PAUSED = "tenant_paused"
    NOT_BEFORE = "not_before"
    KIND = "kind_not_served"
    QUOTA_ZERO = "quota_zero"
    TOO_HEAVY = "heavier_than_its_limit"
    NO_DRIVER = "no_driver"
    LABELS = "labels"
    RESOURCES = "too_large_for_every_driver"
    QUOTA = "quota"
    KEY_LIMIT = "key_limit"
    HARNESS_FULL = "harness_full"
    HOLDER_UNREACHABLE = "holder_unreachable"
    DRIVERS_FULL = "drivers_full"
    PLACES = "physical_slots"
    HEAVY_FIRST = "heavy_run_first"
    BACKLOG = "backlog"


FULL = {Scope.TENANT: Code.QUOTA, Scope.KEY: Code.KEY_LIMIT, Scope.HARNESS: Code.HARNESS_FULL}


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds part of a limit, and when it could be taken from it. `reachable` null: an outside system."""

    holder: str
    tenant: str
    run: int | None
    attempt: int | None
    weight: int
    driver: str
    acquired_at: datetime
    lease_left_seconds: float
    reachable: bool | None
    driver_heard_seconds_ago: float | None


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit that the run needs, as it stands. `name`: what people call it."""

    scope: Scope
    key: str
    name: str
    limit: int | None
    in_flight: int
    holder_count: int
    present: bool = True
    holders: Sequence[Holder] = ()

    def refuses(self, weight: int) -> bool:
        """Whether this much more does not fit now; a missing counter could not be checked (rule G3)."""
        return not self.present or (self.limit is not None and self.in_flight + weight > self.limit)

    def described(self) -> str:
        """The limit in words."""
        what = {Scope.TENANT: "the quota of", Scope.KEY: "the concurrency key", Scope.HARNESS: "the harness"}
        return f"{what.get(self.scope, self.scope.label)} {self.name}"


@dataclass(frozen=True, slots=True)
class Blocker:
    """One thing that keeps the run waiting."""

    code: Code
    sentence: str
    scope: str = ""
    key: str = ""
    limit: int | None = None
    in_flight: int | None = None
    until: datetime | None = None
    lapses_in_seconds: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    holders: Sequence[Holder] = ()
    holder_count: int = 0


@dataclass(frozen=True, slots=True)
class Places:
    """What a driver's latest pass over the physical slots of its instance found (rule P15)."""

    limit: int
    containers: int
    error: str
    seconds_ago: float


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that was read about one queued run."""

    run: Row
    limits: Sequence[Limit]
    standing: Row
    drivers: Sequence[DriverFacts]
    places: Mapping[str, Places] = field(default_factory=dict)
    """By the name of a replica under a physical limit that passed lately."""
    for_operator: bool = True
    """Errors name servers and daemons, which are no tenant's business."""


def judge(situation: Situation) -> list[Blocker]:
    """All that blocks, the most decisive first. Empty: nothing does, the next driver that looks takes it."""
    found: list[Blocker] = []
    for part in (_hard_stops, _hopeless_limits, _nobody, _full_limits, _full_drivers, _no_places, _line):
        found += part(situation)
    return found


def _hard_stops(s: Situation) -> Iterator[Blocker]:
    run = s.run
    if run["deleting_at"] is not None:
        yield Blocker(Code.DELETING, f"Tenant {run['tenant']} is being deleted; its queued runs are cancelled.")
    if run["expired"]:
        yield Blocker(
            Code.EXPIRED, "Its queue deadline has passed; the next sweep ends it.", until=run["queue_deadline"]
        )
    if run["paused_at"] is not None:
        back = f"; it resumes at {_clock(run['resume_at'])}" if run["resume_at"] else ", until somebody resumes it"
        note = f": {run['pause_note']}" if run["pause_note"] else ""
        yield Blocker(Code.PAUSED, f"Tenant {run['tenant']} is paused{back}{note}.", until=run["resume_at"])
    if run["delayed"]:
        why = f" after {run['reason'].replace('_', ' ')}" if run["reason"] else ""
        yield Blocker(Code.NOT_BEFORE, f"It waits for {_clock(run['not_before'])}{why}.", until=run["not_before"])
    if run["kind"] not in (None, "task"):
        yield Blocker(Code.KIND, f"Runs of kind {run['kind']} are not taken from the queue.")


def _hopeless_limits(s: Situation) -> Iterator[Blocker]:
    for limit in s.limits:
        if limit.limit is None or s.run["weight"] <= limit.limit:
            continue
        if limit.limit == 0:
            code = Code.QUOTA_ZERO if limit.scope is Scope.TENANT else FULL[limit.scope]
            yield _of(limit, code, f"{_capital(limit.described())} is 0: nothing is admitted until it is raised.")
        else:
            text = f"Its weight {s.run['weight']} is more than {limit.described()} allows at all ({limit.limit})."
            yield _of(limit, Code.TOO_HEAVY, text)


def _nobody(s: Situation) -> Iterator[Blocker]:
    """At most one of: nobody offers its backend, nobody has its labels, nobody is large enough."""
    run = s.run
    live = [d for d in s.drivers if d.live and d.tenant_id in (None, run["tenant_id"])]
    serving = [d for d in live if d.serves]
    offering = [d for d in serving if not run["backend"] or run["backend"] in d.backends]
    if not offering:
        yield Blocker(Code.NO_DRIVER, _no_driver(run, live, serving))
        return
    wanted = _labels(run)
    missing = {name: value for name, value in wanted.items() if not any(_has(d, {name: value}) for d in offering)}
    if missing:
        yield Blocker(Code.LABELS, f"No driver that serves now has {_shown(missing)}.", labels=missing)
    elif not any(_has(d, wanted) for d in offering):
        yield Blocker(Code.LABELS, f"Each label is offered, but no driver has all of {_shown(wanted)}.", labels=wanted)
    elif not _suitable(s):
        text = f"No driver that suits it has {run['memory_mib']} MiB and {run['cpu']:g} processors."
        yield Blocker(Code.RESOURCES, text)


def _no_driver(run: Row, live: Sequence[DriverFacts], serving: Sequence[DriverFacts]) -> str:
    if not live:
        return "No replica and no runner is alive that serves this tenant."
    if not serving:
        return f"All {len(live)} living drivers that serve this tenant are draining or paused."
    return f"None of the {len(serving)} living drivers that serve this tenant offers the backend {run['backend']}."


def _full_limits(s: Situation) -> Iterator[Blocker]:
    weight = s.run["weight"]
    for limit in s.limits:
        if not limit.present:
            text = (
                f"{_capital(limit.described())} has no counter, so nothing is admitted under it. Run: manage.py doctor"
            )
            yield _of(limit, FULL[limit.scope], text)
        elif limit.refuses(weight) and limit.limit is not None and weight <= limit.limit:
            need = "" if weight == 1 else f", and it needs {weight}"
            text = f"{_capital(limit.described())} is full: {limit.in_flight} of {limit.limit} in use{need}."
            yield _of(limit, FULL[limit.scope], text)
            yield from _unreachable(limit)


def _unreachable(limit: Limit) -> Iterator[Blocker]:
    """Part of a full limit is held for a driver that is not heard: it comes back by itself, and when."""
    lost = sorted((h for h in limit.holders if h.reachable is False), key=lambda h: h.lease_left_seconds)
    if not lost:
        return
    left = max(lost[0].lease_left_seconds, 0.0)
    who = lost[0].driver or "a driver of another tenant's run"
    more = f" and {len(lost) - 1} more are" if len(lost) > 1 else " is"
    text = (
        f"{who}{more} not heard, and holds {sum(h.weight for h in lost)} of {limit.described()}: "
        f"the first permit lapses in {left:.0f} s, or recovery frees it before."
    )
    yield Blocker(
        Code.HOLDER_UNREACHABLE,
        text,
        scope=limit.scope.value,
        key=limit.name,
        lapses_in_seconds=left,
        holders=tuple(lost[:SHOWN_HOLDERS]),
        holder_count=len(lost),
    )


def _full_drivers(s: Situation) -> Iterator[Blocker]:
    suitable = _suitable(s)
    if suitable and all(d.full(s.run["memory_mib"], s.run["cpu"]) for d in suitable):
        held, slots = sum(d.held for d in suitable), sum(d.slots for d in suitable)
        text = f"Every driver that suits it is full: {len(suitable)} with {held} of {slots} slots in use."
        if held < slots:
            text = (
                f"No driver that suits it has room now: {len(suitable)} with {held} of {slots} slots in use; "
                "where a slot is free, the machine's memory or processors are in use, or were not read lately."
            )
        yield Blocker(Code.DRIVERS_FULL, text, limit=slots, in_flight=held)


def _no_places(s: Situation) -> Iterator[Blocker]:
    """Drivers that have room may make no container: their instance has its number, or cannot count them."""
    free = [d for d in _suitable(s) if not d.full(s.run["memory_mib"], s.run["cpu"])]
    known = [s.places[d.name] for d in free if d.kind is DriverKind.REPLICA and d.name in s.places]
    if not free or len(known) < len(free):
        return
    broken = next((places for places in known if places.error), None)
    full = all(places.containers >= places.limit for places in known)
    if broken is not None:
        why = broken.error if s.for_operator else "their physical slots cannot be counted at present"
        yield Blocker(Code.PLACES, f"The drivers that suit it may make no container now: {why}.")
    elif full:
        limit, there = sum(p.limit for p in known[:1]), sum(p.containers for p in known[:1])
        text = (
            f"Every physical slot of the drivers that suit it is taken: {there} containers of at most {limit}, "
            f"as the latest pass found {known[0].seconds_ago:.0f} s ago."
        )
        yield Blocker(Code.PLACES, text, limit=limit, in_flight=there)


def _line(s: Situation) -> Iterator[Blocker]:
    if s.run["delayed"]:
        return
    standing = s.standing
    quota = next((limit for limit in s.limits if limit.scope is Scope.TENANT), None)
    head_waits = quota is not None and standing["head"] not in (None, s.run["id"]) and standing["ahead"]
    if (
        head_waits
        and quota is not None
        and not quota.refuses(s.run["weight"])
        and quota.refuses(standing["head_weight"])
    ):
        text = f"Run {standing['head']} of weight {standing['head_weight']} is first in line and waits for room."
        yield Blocker(Code.HEAVY_FIRST, text)
    if standing["ahead"] or standing["tenants_ahead"]:
        text = (
            f"Others go first: {_number(standing['ahead'])} runs of its own tenant, "
            f"{_number(standing['tenants_ahead'])} tenants with less than their share."
        )
        yield Blocker(Code.BACKLOG, text)


def _suitable(s: Situation) -> list[DriverFacts]:
    """Those who could ever take it, free or not."""
    run, wanted = s.run, _labels(s.run)
    return [
        d
        for d in s.drivers
        if d.serves
        and d.tenant_id in (None, run["tenant_id"])
        and (not run["backend"] or run["backend"] in d.backends)
        and _has(d, wanted)
        and (not d.memory_mib or run["memory_mib"] <= d.memory_mib)
        and (not d.cpu or run["cpu"] <= d.cpu)
    ]


def _has(driver: DriverFacts, wanted: Mapping[str, str]) -> bool:
    return all(driver.labels.get(name) == value for name, value in wanted.items())


def _labels(run: Row) -> dict[str, str]:
    value: Any = run["labels"]
    return dict(json.loads(value)) if isinstance(value, str) else dict(value)


def _shown(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(labels.items()))


def _of(limit: Limit, code: Code, text: str) -> Blocker:
    return Blocker(
        code,
        text,
        scope=limit.scope.value,
        key=limit.name,
        limit=limit.limit,
        in_flight=limit.in_flight,
        holders=tuple(limit.holders[:SHOWN_HOLDERS]),
        holder_count=limit.holder_count,
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _clock(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC" if at else "its time"


def _number(count: int) -> str:
    return f"more than {COUNTED:,}" if count > COUNTED else f"{count:,}"


def first_sentence(blockers: Iterable[Blocker]) -> str:
    """The short answer: the most decisive one, and where a part of it comes back by itself, that too."""
    found = list(blockers)
    if not found:
        return "Nothing blocks it: the next driver that looks takes it."
    follow = [b for b in found[1:2] if b.code is Code.HOLDER_UNREACHABLE]
    return " ".join(b.sentence for b in [found[0], *follow])
