"""What the runners' side says of itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from controlplane.core.conf import conf
from controlplane.core.metrics import Metric, gauge, gauges
from controlplane.core.sql import one

STATES: Final = ("live", "paused", "draining", "silent", "revoked")

# Runners by how they are heard, each counted once. Reads the table of runners whole.
READ_RUNNERS: Final = """
SELECT count(*) FILTER (WHERE state = 'live') AS live, count(*) FILTER (WHERE state = 'paused') AS paused,
       count(*) FILTER (WHERE state = 'draining') AS draining, count(*) FILTER (WHERE state = 'silent') AS silent,
       count(*) FILTER (WHERE state = 'revoked') AS revoked,
       coalesce(sum(slots) FILTER (WHERE state = 'live'), 0)::int AS slots
FROM (SELECT slots, CASE WHEN revoked_at IS NOT NULL THEN 'revoked'
                         WHEN coalesce(contact_at < statement_timestamp() - make_interval(secs => %(lease_seconds)s),
                                       true) THEN 'silent'
                         WHEN draining_at IS NOT NULL THEN 'draining'
                         WHEN paused_at IS NOT NULL THEN 'paused' ELSE 'live' END AS state
      FROM runners_runner) judged
"""


def collect() -> Iterator[Metric]:
    """One statement."""
    row = one(READ_RUNNERS, {"lease_seconds": conf().runner_lease_seconds}) or {}
    counted = {state: row[state] for state in STATES}
    yield gauges("runners", "Runners by how they are heard; silent: not within a lease.", "state", counted)
    yield gauge("runner_slots", "Runs that live runners execute at once.", row["slots"])
