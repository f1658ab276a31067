"""Readings of the fleet page: no locks, each bounded by what is in flight, by a cap, or by the number of tenants."""

from __future__ import annotations

from typing import Final

# Counts per state, and the longest wait. Queued and ended runs are counted up to a cap each; admitted and running ones
# are bounded by the fleet's slots. The orders are those of the partial indexes: without them the planner reads the
# whole table, hoping to meet queued rows early. The longest wait looks at the head of each waiting queue only.
# Indexes: run_queue, run_delayed, run_driver, run_finished, counter_fair_order's tenants by counter_scope_key.
READ_STATES: Final = """
SELECT statement_timestamp() AS now,
       current_setting('server_version') AS server_version,
       (SELECT count(*) FROM (
           SELECT FROM admission_run WHERE state = 'queued' AND NOT delayed
           ORDER BY tenant_id, rank_at, id LIMIT %(cap)s) q) AS queued,
       (SELECT count(*) FROM (
           SELECT FROM admission_run WHERE state = 'queued' AND delayed
           ORDER BY not_before LIMIT %(cap)s) q) AS delayed,
       held.admitted, held.running,
       (SELECT extract(epoch FROM statement_timestamp() - min(head.created_at))::float8 FROM (
           SELECT tenant_id FROM admission_counter WHERE scope = 'tenant' AND backlog LIMIT %(tenants)s) c
        CROSS JOIN LATERAL (
           SELECT created_at FROM admission_run r
           WHERE r.tenant_id = c.tenant_id AND r.state = 'queued' AND NOT r.delayed
           ORDER BY r.rank_at, r.id LIMIT 1) head) AS oldest_queued_seconds
FROM (SELECT count(*) FILTER (WHERE state = 'admitted') AS admitted,
             count(*) FILTER (WHERE state = 'running') AS running
      FROM admission_run WHERE state IN ('admitted', 'running')) held
"""

# Ends of the last 24 hours by ending, newest first up to a cap. Index: run_finished.
READ_ENDED: Final = """
SELECT state, count(*) AS ended FROM (
    SELECT state FROM admission_run
    WHERE finished_at > statement_timestamp() - interval '24 hours'
    ORDER BY finished_at DESC LIMIT %(cap)s) recent
GROUP BY state
"""

# Ends a minute over the last hour, for the chart: how many succeeded, how many did not. Index: run_finished.
READ_MINUTES: Final = """
SELECT floor(extract(epoch FROM statement_timestamp() - finished_at) / 60)::int AS minutes_ago,
       count(*) FILTER (WHERE state = 'succeeded') AS good, count(*) FILTER (WHERE state <> 'succeeded') AS other
FROM (SELECT state, finished_at FROM admission_run
      WHERE finished_at > statement_timestamp() - interval '60 minutes'
      ORDER BY finished_at DESC LIMIT %(cap)s) recent
GROUP BY 1
"""

# Tenants by pressure: those over their quota first, then the fullest, then those without quota by use. Reads tenants
# and their counters whole (one hash join), and the queue of the shown ones only, up to a cap. Index: run_tenant_state.
READ_TENANTS: Final = """
WITH held AS (
    SELECT tenant_id, sum(weight)::int AS weight FROM admission_run
    WHERE state IN ('admitted', 'running') AND (kind IS NULL OR kind = 'task') GROUP BY tenant_id
),
used AS (
    SELECT t.id, t.slug, t.name, t.has_quota, t.paused_at, CASE WHEN t.has_quota THEN c."limit" END AS "limit",
           c.in_flight + CASE WHEN t.has_quota THEN 0 ELSE coalesce(h.weight, 0) END AS used, c.backlog
    FROM admission_tenant t
    JOIN admission_counter c ON c.tenant_id = t.id AND c.scope = 'tenant'
    LEFT JOIN held h ON h.tenant_id = t.id
),
shown AS (
    SELECT *, count(*) OVER () AS tenants FROM used
    ORDER BY used::float8 / nullif("limit", 0) DESC NULLS LAST, used DESC, backlog DESC, slug LIMIT %(rows)s
)
SELECT shown.*, waiting.queued FROM shown
LEFT JOIN LATERAL (SELECT count(*) AS queued FROM (
    SELECT FROM admission_run r WHERE r.tenant_id = shown.id AND r.state = 'queued' LIMIT %(cap)s) q) waiting ON true
ORDER BY used::float8 / nullif("limit", 0) DESC NULLS LAST, used DESC, backlog DESC, slug
"""

# Every driver with what it holds: replicas not declared dead, runners not revoked. Index: run_driver.
READ_DRIVERS: Final = """
WITH drivers AS (
    SELECT 'replica' AS kind, id, name, slots, version, executor AS how, draining_at IS NOT NULL AS draining,
           false AS paused, extract(epoch FROM statement_timestamp() - beat_at)::float8 AS heard_seconds_ago
    FROM recovery_replica WHERE declared_dead_at IS NULL
    UNION ALL
    SELECT 'runner', id, name, slots, version, executors::text, draining_at IS NOT NULL, paused_at IS NOT NULL,
           extract(epoch FROM statement_timestamp() - contact_at)::float8
    FROM runners_runner WHERE revoked_at IS NULL
)
SELECT d.*, (SELECT count(*) FROM admission_run r
             WHERE r.driver_kind = d.kind AND r.driver_id = d.id AND r.state IN ('admitted', 'running')) AS runs
FROM drivers d ORDER BY kind, name LIMIT %(rows)s
"""

# Permits held, those about to lapse, and the sum of all violations of conservation (rule A5), in one snapshot.
READ_PERMITS: Final = """
SELECT held.permits, held.lapsed, (
    SELECT count(*) FROM admission_counter c
    FULL JOIN (SELECT scope, key, sum(weight)::int AS weight FROM admission_permit GROUP BY scope, key) p
      ON p.scope = c.scope AND p.key = c.key
    WHERE coalesce(c.in_flight, 0) <> coalesce(p.weight, 0)) AS drift
FROM (SELECT count(*) AS permits,
             count(*) FILTER (WHERE renewed_at + lapse_seconds * interval '1 second' < statement_timestamp()) AS lapsed
      FROM admission_permit) held
"""
