"""Start-time fair queueing (Goyal, Vin, Cheng 1996) over tenants, as pure arithmetic.

Each tenant has a virtual time: the finish tag of its latest admission. The next admission's start tag is
max(virtual time, V), V being the highest start tag served so far; its finish tag is start + weight / share. Serving
the smallest start tag first gives each backlogged tenant its share; max(…, V) gives an idle one no credit for its
past.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class Flow:
    """One tenant's place while runs are being picked."""

    tenant_id: int
    virtual_time: float
    share: float
    order: int
    """Position in the reading: breaks ties in favour of the tenant served longest ago."""
    headroom: int | None = None
    limit: int | None = None

    def may_ever_hold(self, weight: int) -> bool:
        """Whether a run of this weight fits once enough of the tenant's work has ended."""
        return self.limit is None or weight <= self.limit


def spread(flows: Iterable[Flow], count: int, virtual_now: float) -> dict[int, int]:
    """How many of the next `count` admissions each tenant would get if all had enough queued, weight 1 each."""
    heap = [(max(f.virtual_time, virtual_now), f.order, f) for f in flows]
    heapq.heapify(heap)
    given: dict[int, int] = {}
    while heap and count > 0:
        start, order, flow = heapq.heappop(heap)
        given[flow.tenant_id] = given.get(flow.tenant_id, 0) + 1
        count -= 1
        if flow.headroom is None or given[flow.tenant_id] < flow.headroom:
            heapq.heappush(heap, (start + 1 / flow.share, order, flow))
    return given
