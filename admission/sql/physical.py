"""What processes report of their passes, and the request for one (rules P10, P15). Nothing here grants or frees."""

from __future__ import annotations

from typing import Final

# One process's latest pass. The last error stays until a later pass fails otherwise; `error_at` says how old it is.
# Locks: that process's own row. Index: physicalreport_process.
RECORD_REPORT: Final = """
INSERT INTO admission_physicalreport AS r (
    instance, process, machine, "limit", generation, containers_running, containers_created, containers_other,
    without_token, without_container, took_seconds, last_error, error_at, reconcile_seen, reported_at)
VALUES (
    %(instance)s, %(process)s, %(machine)s, %(limit)s, %(generation)s, %(running)s, %(created)s, %(other)s,
    %(without_token)s, %(without_container)s, %(took_seconds)s, %(error)s::text,
    CASE WHEN %(error)s::text <> '' THEN clock_timestamp() END, %(reconcile_seen)s, clock_timestamp())
ON CONFLICT (instance, process) DO UPDATE SET
    machine = excluded.machine, "limit" = excluded."limit", generation = excluded.generation,
    containers_running = excluded.containers_running, containers_created = excluded.containers_created,
    containers_other = excluded.containers_other, without_token = excluded.without_token,
    without_container = excluded.without_container, took_seconds = excluded.took_seconds,
    last_error = CASE WHEN excluded.last_error = '' THEN r.last_error ELSE excluded.last_error END,
    error_at = coalesce(excluded.error_at, r.error_at),
    reconcile_seen = greatest(r.reconcile_seen, excluded.reconcile_seen), reported_at = excluded.reported_at
"""

# Processes that ended without a word, of this instance or any other: a handful of rows, no index needed.
FORGET_OLD_REPORTS: Final = """
DELETE FROM admission_physicalreport
WHERE reported_at < statement_timestamp() - make_interval(secs => %(age)s)
"""

# A clean stop. Index: physicalreport_process.
FORGET_REPORT: Final = "DELETE FROM admission_physicalreport WHERE instance = %(instance)s AND process = %(process)s"

# Every request has a number of its own, also of two at once. Locks: the instance's row. Index: unique (instance).
ASK_RECONCILE: Final = """
INSERT INTO admission_physicalrequest AS q (instance, number, asked_at, asked_by, reason)
VALUES (%(instance)s, 1, clock_timestamp(), %(by)s, %(reason)s)
ON CONFLICT (instance) DO UPDATE SET
    number = q.number + 1, asked_at = excluded.asked_at, asked_by = excluded.asked_by, reason = excluded.reason
RETURNING number
"""

# 0 rows: nobody ever asked. Index: unique (instance).
READ_REQUEST: Final = """
SELECT number, asked_by, reason, extract(epoch FROM statement_timestamp() - asked_at)::float8 AS age_seconds
FROM admission_physicalrequest WHERE instance = %(instance)s
"""

# The processes of one instance, those heard last first. Index: physicalreport_process.
READ_REPORTS: Final = """
SELECT process, machine, "limit", generation, containers_running, containers_created, containers_other, without_token,
       without_container, took_seconds, last_error, reconcile_seen,
       extract(epoch FROM statement_timestamp() - reported_at)::float8 AS age_seconds,
       extract(epoch FROM statement_timestamp() - error_at)::float8 AS error_age_seconds
FROM admission_physicalreport WHERE instance = %(instance)s ORDER BY reported_at DESC LIMIT %(most)s
"""
