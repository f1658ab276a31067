"""Choosing among locked candidates, under locked counters: pure arithmetic, no database.

All or none per run: a run that finds any of its counters or the envelope full is left queued, and the next one in fair
order is looked at, so that a full limit blocks only its own runs.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from admission.spec import RunSpec
from admission.states import Scope


@dataclass(frozen=True, slots=True)
class Candidate:
    """A locked queued run and the counters that it must be counted in."""

    run: int
    tenant_id: int
    rank: tuple[datetime, int]
    weight: int
    memory_mib: int
    cpu: float
    needs: tuple[tuple[str, str], ...]
    spec: RunSpec


@dataclass(slots=True)
class CounterRow:
    """A locked counter, newest values; `in_flight` moves while planning."""

    id: int
    scope: str
    key: str
    tenant_id: int | None
    limit: int | None
    in_flight: int
    virtual_time: float

    def has_room(self, weight: int) -> bool:
        """Whether this much more stays within the limit."""
        return self.limit is None or self.in_flight + weight <= self.limit


@dataclass(slots=True)
class Step:
    """What is written to one counter."""

    counter: int
    weight: int = 0
    virtual_time: float | None = None
    start_tag: float | None = None


@dataclass(slots=True)
class Plan:
    """The runs to admit, in fair order, and the counters' changes."""

    chosen: list[Candidate] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)


@dataclass(slots=True)
class _Room:
    slots: int
    memory_mib: int | None
    cpu: float | None

    def take(self, candidate: Candidate) -> bool:
        """Reserve, or say that it does not fit. Slack of one part in a million: fractions of processors are floats."""
        if self.slots <= 0:
            return False
        if self.memory_mib is not None and candidate.memory_mib > self.memory_mib:
            return False
        if self.cpu is not None and candidate.cpu > self.cpu + 1e-6:
            return False
        self.slots -= 1
        if self.memory_mib is not None:
            self.memory_mib -= candidate.memory_mib
        if self.cpu is not None:
            self.cpu -= candidate.cpu
        return True


def plan_admission(
    candidates: Sequence[Candidate],
    counters: Iterable[CounterRow],
    share: Mapping[int, float],
    *,
    slots: int,
    memory_mib: int | None,
    cpu: float | None,
    virtual_now: float,
) -> Plan:
    """Serve the smallest start tag first, as long as anything fits."""
    by_need = {(c.scope, c.key): c for c in counters}
    steps: dict[int, Step] = {}
    plan, room = Plan(), _Room(slots, memory_mib, cpu)
    queues: dict[int, deque[Candidate]] = {}
    for candidate in sorted(candidates, key=lambda c: c.rank):
        queues.setdefault(candidate.tenant_id, deque()).append(candidate)
    heap = []
    for tenant_id in queues:
        flow = by_need.get((Scope.TENANT.value, str(tenant_id)))
        if flow is not None:
            heap.append((max(flow.virtual_time, virtual_now), tenant_id, flow))
    heapq.heapify(heap)
    while heap and room.slots > 0:
        start, tenant_id, flow = heapq.heappop(heap)
        taken = _next_that_fits(queues[tenant_id], by_need, room)
        if taken is None:
            continue
        plan.chosen.append(taken)
        for need in taken.needs:
            counter = by_need[need]
            counter.in_flight += taken.weight
            steps.setdefault(counter.id, Step(counter.id)).weight += taken.weight
        step = steps.setdefault(flow.id, Step(flow.id))
        step.start_tag = start
        step.virtual_time = flow.virtual_time = start + taken.weight / share[tenant_id]
        heapq.heappush(heap, (flow.virtual_time, tenant_id, flow))
    plan.steps = list(steps.values())
    return plan


def _next_that_fits(
    queue: deque[Candidate], by_need: Mapping[tuple[str, str], CounterRow], room: _Room
) -> Candidate | None:
    while queue:
        candidate = queue.popleft()
        needed = [by_need.get(need) for need in candidate.needs]
        # A missing counter is "could not check": not admitted (rule G3).
        if all(c is not None and c.has_room(candidate.weight) for c in needed) and room.take(candidate):
            return candidate
        if _waits_for_its_tenant(candidate, needed):
            return None
    return None


def _waits_for_its_tenant(candidate: Candidate, needed: Sequence[CounterRow | None]) -> bool:
    """A heavy run first in line keeps its place: lighter ones passing it for ever would starve it.

    Unless it could never fit, the quota having been lowered below its weight.
    """
    quota = next((c for c in needed if c is not None and c.scope == Scope.TENANT.value), None)
    if quota is None or quota.limit is None or quota.has_room(candidate.weight):
        return False
    return candidate.weight <= quota.limit
