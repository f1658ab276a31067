"""Readings for the metrics: no locks, each bounded by what is in flight, by a cap, or by the number of tenants."""

from __future__ import annotations

from typing import Final

# Index: run_queue, run_delayed, run_driver; the longest wait looks at the head of each waiting queue only
# (counter_fair_order's tenants, run_queue). Conservation reads counters and permits whole, as the audit does.
READ_LEDGER: Final = """
SELECT (SELECT count(*) FROM (
           SELECT FROM admission_run WHERE state = 'queued' AND NOT delayed
           ORDER BY tenant_id, rank_at, id LIMIT %(cap)s) q) AS queued,
       (SELECT count(*) FROM (
           SELECT FROM admission_run WHERE state = 'queued' AND delayed
           ORDER BY not_before LIMIT %(cap)s) q) AS delayed,
       held.admitted, held.running, held.cancelling, permits.permits, permits.lapsed,
       (SELECT coalesce(extract(epoch FROM statement_timestamp() - min(head.created_at)), 0)::float8 FROM (
           SELECT tenant_id FROM admission_counter WHERE scope = 'tenant' AND backlog LIMIT %(heads)s) c
        CROSS JOIN LATERAL (
           SELECT created_at FROM admission_run r
           WHERE r.tenant_id = c.tenant_id AND r.state = 'queued' AND NOT r.delayed
           ORDER BY r.rank_at, r.id LIMIT 1) head) AS longest_wait
FROM (SELECT count(*) FILTER (WHERE state = 'admitted') AS admitted,
             count(*) FILTER (WHERE state = 'running') AS running,
             count(*) FILTER (WHERE cancel_requested_at IS NOT NULL) AS cancelling
      FROM admission_run WHERE state IN ('admitted', 'running')) held,
     (SELECT count(*) AS permits,
             count(*) FILTER (WHERE renewed_at + lapse_seconds * interval '1 second' < statement_timestamp()) AS lapsed
      FROM admission_permit) permits
"""

# Index: run_finished.
READ_ENDED: Final = """
SELECT state, count(*) AS ended FROM (
    SELECT state FROM admission_run WHERE finished_at > statement_timestamp() - interval '1 hour'
    ORDER BY finished_at DESC LIMIT %(cap)s) recent
GROUP BY state
"""

# Index: counter_scope_key, primary key of tenants. Reads the tenants whole, once.
READ_TENANTS: Final = """
SELECT count(*) FILTER (WHERE t.paused_at IS NOT NULL) AS paused,
       count(*) FILTER (WHERE t.has_quota AND c.in_flight = c."limit") AS full_ones,
       count(*) FILTER (WHERE t.has_quota AND c.in_flight > c."limit") AS over,
       count(*) FILTER (WHERE c.backlog) AS waiting, count(*) AS tenants
FROM admission_tenant t JOIN admission_counter c ON c.tenant_id = t.id AND c.scope = 'tenant'
"""

# The tenants with a quota, the fullest first. Index: counter_scope_key.
READ_FULLEST: Final = """
SELECT t.slug, c.in_flight, c."limit"
FROM admission_tenant t JOIN admission_counter c ON c.tenant_id = t.id AND c.scope = 'tenant'
WHERE t.has_quota
ORDER BY c.in_flight::float8 / nullif(c."limit", 0) DESC NULLS LAST, t.id LIMIT %(rows)s
"""
