"""The last 24 hours, from the samples that the leader's sweep writes each minute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from controlplane.core.sql import Row

BUCKETS = 96
BUCKET_WIDTH = 3
HEIGHT = 60

# Per quarter of an hour: how many runs ended, and the longest queue. A series at a time, so that the samples of ten
# thousand tenants beside them are not read. Index: sample_once.
READ_DAY: Final = """
SELECT floor(extract(epoch FROM statement_timestamp() - d.at) / 900)::int AS ago,
       coalesce(sum(d.value) FILTER (WHERE s.series = 'ended'), 0) AS ended,
       coalesce(max(d.value) FILTER (WHERE s.series = 'runs'), 0) AS queued
FROM (VALUES ('runs', 'queued'), ('ended', 'succeeded'), ('ended', 'failed'), ('ended', 'timed_out'),
             ('ended', 'interrupted'), ('ended', 'cancelled')) s(series, key)
CROSS JOIN LATERAL (
    SELECT at, value FROM core_sample c
    WHERE c.series = s.series AND c.key = s.key AND c.at > statement_timestamp() - interval '24 hours'
) d
GROUP BY 1 ORDER BY 1 DESC
"""


@dataclass(frozen=True, slots=True)
class Bar:
    """The runs that ended in one quarter of an hour, in the units of the drawing."""

    left: int
    top: str
    height: str


@dataclass(frozen=True, slots=True)
class Day:
    """A chart: bars of what ended, a line of the longest queue, each to its own scale."""

    bars: list[Bar]
    queue: str
    ended: str
    longest_queue: str


def draw_day(quarters: Sequence[Row]) -> Day | None:
    """None: no sample was taken in 24 hours."""
    if not quarters:
        return None
    most, longest = max(q["ended"] for q in quarters), max(q["queued"] for q in quarters)
    bars, line = [], []
    for quarter in quarters:
        left = BUCKET_WIDTH * max(BUCKETS - 1 - quarter["ago"], 0)
        if quarter["ended"]:
            height = HEIGHT * quarter["ended"] / most
            bars.append(Bar(left, f"{HEIGHT - height:.1f}", f"{height:.1f}"))
        line.append(f"{left + BUCKET_WIDTH / 2:.1f},{HEIGHT - HEIGHT * quarter['queued'] / max(longest, 1):.1f}")
    total = sum(q["ended"] for q in quarters)
    return Day(bars, " ".join(line), f"{total:,.0f}", f"{longest:,.0f}")
