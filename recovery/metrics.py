"""What recovery says of itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from admission.services.readings import read_stuck
from controlplane.core.conf import conf
from controlplane.core.metrics import Metric, gauge, gauges
from controlplane.core.sql import rows
from recovery.selectors import read_standing
from recovery.services.reporting import COUNTED

STATES = ("live", "draining", "silent", "dead")
OUTCOMES = tuple(outcome.value for outcome in COUNTED)
REPLICA_ROWS = 500
STUCK_CAP = 100

# Incarnations, those heard last first. Index: replica_beat.
READ_BEATS: Final = """
SELECT name, slots, extract(epoch FROM statement_timestamp() - beat_at)::float8 AS heard,
       CASE WHEN declared_dead_at IS NOT NULL THEN 'dead'
            WHEN beat_at < statement_timestamp() - make_interval(secs => %(stale_seconds)s) THEN 'silent'
            WHEN draining_at IS NOT NULL THEN 'draining' ELSE 'live' END AS state
FROM recovery_replica ORDER BY beat_at DESC LIMIT %(limit)s
"""

# What became of dead replicas' runs, of the newest ten thousand actions. Index: primary key, backwards.
READ_RECENT_OUTCOMES: Final = """
SELECT outcome, count(*) AS runs FROM (
    SELECT outcome, at, run_id FROM recovery_recoveryaction ORDER BY id DESC LIMIT 10000) recent
WHERE at > statement_timestamp() - interval '1 hour' AND run_id IS NOT NULL GROUP BY outcome
"""


def collect() -> Iterator[Metric]:
    """Four statements."""
    found = rows(READ_BEATS, {"stale_seconds": conf().replica_stale_seconds, "limit": REPLICA_ROWS})
    counted = {state: sum(row["state"] == state for row in found) for state in STATES}
    yield gauges("replicas", "Incarnations of replicas by how they are heard.", "state", counted)
    yield gauges(
        "replica_heartbeat_age_seconds",
        "Since the last beat of a replica that is not declared dead.",
        "replica",
        {row["name"]: row["heard"] for row in found if row["state"] != "dead"},
    )
    live_slots = sum(row["slots"] for row in found if row["state"] == "live")
    yield gauge("replica_slots", "Runs that live replicas execute at once.", live_slots)
    recent = {row["outcome"]: row["runs"] for row in rows(READ_RECENT_OUTCOMES)}
    yield gauges(
        "recovered_runs_last_hour",
        "Runs of dead replicas by what became of them within the last hour.",
        "outcome",
        {outcome: recent.get(outcome, 0) for outcome in OUTCOMES},
    )
    standing = read_standing()
    yield gauge("recovery_debts_open", "Runs of dead replicas that are not decided yet.", standing.open_debts)
    yield gauge("recovery_debts_escalated", "Of these, not decided after five attempts.", standing.escalated)
    yield gauge("recovery_held_replicas", "Silent replicas that a hold keeps from being declared dead.", standing.held)
    if standing.last_pass_age is not None:
        yield gauge(
            "recovery_last_pass_age_seconds", "Since any replica looked for dead peers.", standing.last_pass_age
        )
    stuck = read_stuck(STUCK_CAP)
    yield gauge("stuck_runs", f"Runs that should have moved and did not; counted up to {STUCK_CAP}.", len(stuck))
