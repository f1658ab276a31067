"""What stands now: leaders, loops and alarms, by the database's clock. Nothing here writes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from controlplane.core.conf import conf
from controlplane.core.sql import one, rows
from leadership.election import LOOPS

# Index: primary key.
LEASES: Final = """
SELECT role, term, holder_name, acquired_at, renewed_at, expires_at, step_down_at, step_down_by, step_down_reason,
       holder <> '' AND expires_at > statement_timestamp() AS led,
       extract(epoch FROM expires_at - statement_timestamp())::float8 AS seconds_left
FROM leadership_lease ORDER BY role
"""

# Each declared loop with its newest fire (gated) or the newest run of any process (local).
# Index: loop_place, fire_once.
LOOP_STATES: Final = """
SELECT l.loop, l.gate, l.seconds, l.why,
       coalesce(f.state, n.state) AS state, coalesce(f.fire_at, n.last_at) AS last_at,
       coalesce(f.took, n.last_seconds) AS took_seconds, coalesce(f.result, n.result) AS result,
       coalesce(f.error, n.error, '') AS error, coalesce(f.worker, n.place, '') AS place, f.term,
       extract(epoch FROM statement_timestamp() - coalesce(f.fire_at, n.last_at))::float8 AS age_seconds
FROM leadership_loopseen l
LEFT JOIN LATERAL (
    SELECT state, fire_at, term, result, error, worker, extract(epoch FROM finished_at - started_at)::float8 AS took
    FROM leadership_fire WHERE loop = l.loop ORDER BY fire_at DESC LIMIT 1) f ON l.gate = 'leader'
LEFT JOIN LATERAL (
    SELECT CASE WHEN error = '' THEN 'done' ELSE 'failed' END AS state, last_at, last_seconds, result, error, place
    FROM leadership_loopseen s WHERE s.loop = l.loop AND s.place <> '' ORDER BY last_at DESC NULLS LAST LIMIT 1
) n ON l.gate = 'local'
WHERE l.place = ''
ORDER BY l.gate, l.loop
"""

# What an operator must be told, in one look. Index: fire_one_undone, primary key, intent_pending, fire_once.
ALARMS: Final = """
SELECT (SELECT extract(epoch FROM statement_timestamp() - max(expires_at))::float8
        FROM leadership_lease WHERE role = %(role)s) AS leaderless,
       (SELECT max(extract(epoch FROM statement_timestamp() - enqueued_at))::float8
        FROM leadership_fire WHERE state = 'undone' AND started_at IS NULL) AS untaken,
       (SELECT count(*) FROM leadership_intent WHERE dead_at IS NOT NULL) AS given_up,
       ARRAY(SELECT l.loop FROM leadership_loopseen l CROSS JOIN LATERAL (
                 SELECT bool_and(state = 'failed') AND count(*) = 3 AS failing FROM (
                     SELECT state FROM leadership_fire f WHERE f.loop = l.loop AND state <> 'undone'
                     ORDER BY fire_at DESC LIMIT 3) last3) j
             WHERE l.place = '' AND l.gate = 'leader' AND j.failing ORDER BY 1) AS failing
"""

ALARM_CODES: Final = ("no_leader", "no_qcluster", "loop_failing", "intents_given_up")


@dataclass(frozen=True, slots=True)
class LeaseState:
    """A role's lease."""

    role: str
    term: int
    holder_name: str
    acquired_at: datetime
    renewed_at: datetime
    expires_at: datetime
    step_down_at: datetime | None
    step_down_by: str
    step_down_reason: str
    led: bool
    seconds_left: float


@dataclass(frozen=True, slots=True)
class LoopState:
    """A loop and its last run."""

    loop: str
    gate: str
    seconds: float
    why: str
    state: str | None
    last_at: datetime | None
    took_seconds: float | None
    result: Any
    error: str
    place: str
    term: int | None
    age_seconds: float | None


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that no process can put right by itself: what, and what to do."""

    code: str
    text: str


def read_leases() -> list[LeaseState]:
    """Every role that was ever led."""
    return [LeaseState(**row) for row in rows(LEASES)]


def read_loops() -> list[LoopState]:
    """Every loop of the running fleet."""
    # Django leaves jsonb of raw statements as text.
    found = rows(LOOP_STATES)
    return [LoopState(**{**row, "result": json.loads(row["result"] or "null")}) for row in found]


def read_alarms() -> list[Alarm]:
    """Empty: all is well."""
    row = one(ALARMS, {"role": LOOPS}) or {}
    settings = conf()
    found = []
    leaderless = row["leaderless"]
    if leaderless is None or leaderless > 2 * settings.leader_lease_seconds:
        since = "ever" if leaderless is None else f"for {leaderless:.0f} s"
        found.append(Alarm("no_leader", f"Nobody has led {since}: no sweep runs. Start a replica."))
    if (row["untaken"] or 0) > settings.fire_untaken_seconds:
        text = f"A sweep has waited {row['untaken']:.0f} s and no qcluster took it. Start one: manage.py qcluster."
        found.append(Alarm("no_qcluster", text))
    found += [Alarm("loop_failing", f"Loop {loop!r} failed three times in a row.") for loop in row["failing"]]
    if row["given_up"]:
        found.append(Alarm("intents_given_up", f"{row['given_up']} notifications could not be delivered."))
    return found
