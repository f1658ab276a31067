"""What `why` reads: no locks, a fixed number of statements, each bounded by limits and never by the backlog."""

from __future__ import annotations

from typing import Final

# The run and its tenant. `%(tenant_id)s` null: any tenant. 0 rows: no such run for this caller. Index: primary keys.
READ_WAITING_RUN: Final = """
SELECT r.id, r.state, r.reason, r.kind, r.tenant_id, r.labels, r.backend, r.harness, r.concurrency_key, r.weight,
       r.memory_mib, r.cpu, r.delayed, r.not_before, r.rank_at, r.queue_deadline, r.driver_name, r.admitted_at,
       r.started_at, r.start_deadline, r.finished_at, r.cancel_requested_at IS NOT NULL AS cancel,
       coalesce(r.queue_deadline <= statement_timestamp(), false) AS expired,
       t.slug AS tenant, t.weight::float8 AS share, t.has_quota, t.paused_at, t.pause_note, t.resume_at, t.deleting_at,
       statement_timestamp() AS now
FROM admission_run r JOIN admission_tenant t ON t.id = r.tenant_id
WHERE r.id = %(run)s AND (%(tenant_id)s::bigint IS NULL OR r.tenant_id = %(tenant_id)s)
"""

# Where it stands: runs of its own tenant before it and tenants that are served before its own, each counted up to
# `limit`; the head of its queue; the place of its tenant in the fair order and what the tenants with work weigh
# together. Index: run_queue, counter_fair_order, counter_start_tag; the sum walks the tenants' counters.
READ_STANDING: Final = """
SELECT c.virtual_time,
       coalesce((SELECT max(start_tag) FROM admission_counter WHERE scope = 'tenant'), 0) AS virtual_now,
       (SELECT count(*) FROM (
            SELECT FROM admission_run q
            WHERE q.tenant_id = c.tenant_id AND q.state = 'queued' AND NOT q.delayed
              AND (q.rank_at, q.id) < (%(rank_at)s::timestamptz, %(run)s::bigint) LIMIT %(limit)s) a) AS ahead,
       (SELECT count(*) FROM (
            SELECT FROM admission_counter o
            WHERE o.scope = 'tenant' AND o.backlog AND NOT o.paused AND (o."limit" IS NULL OR o.in_flight < o."limit")
              AND o.virtual_time <= c.virtual_time AND o.id <> c.id
              AND (o.virtual_time, coalesce(o.served_at, '-infinity'), o.id)
                  < (c.virtual_time, coalesce(c.served_at, '-infinity'), c.id) LIMIT %(limit)s) b) AS tenants_ahead,
       coalesce((SELECT sum(t.weight) FROM admission_counter b JOIN admission_tenant t ON t.id = b.tenant_id
                 WHERE b.scope = 'tenant' AND b.backlog AND NOT b.paused), 0)::float8 AS shares,
       h.id AS head, h.weight AS head_weight
FROM admission_counter c
LEFT JOIN LATERAL (
    SELECT q.id, q.weight FROM admission_run q
    WHERE q.tenant_id = c.tenant_id AND q.state = 'queued' AND NOT q.delayed
    ORDER BY q.rank_at, q.id LIMIT 1) h ON true
WHERE c.scope = 'tenant' AND c.key = %(tenant_id)s::bigint::text
"""

# The counters it needs, in the order they were asked, each with its permits counted up to `limit`. A counter that is
# not there has `limit` null and `present` false. Index: counter_scope_key, permit_counter.
READ_LIMITS: Final = """
SELECT a.scope, a.key, c.id IS NOT NULL AS present, c."limit", coalesce(c.in_flight, 0) AS in_flight,
       (SELECT count(*) FROM (
            SELECT FROM admission_permit p WHERE p.scope = a.scope AND p.key = a.key LIMIT %(limit)s) n) AS holders
FROM unnest(%(scopes)s::text[], %(keys)s::text[]) WITH ORDINALITY AS a(scope, key, place)
LEFT JOIN admission_counter c ON c.scope = a.scope AND c.key = a.key
ORDER BY a.place
"""

# Who holds these limits, oldest first, a bounded number of each, with what is left until the hold can be taken: by the
# permit's lease, or by the runner's if that ends sooner. Index: permit_counter, primary key.
READ_HOLDERS: Final = """
SELECT h.scope, h.key, h.holder, h.weight, h.tenant_id, t.slug AS tenant, h.run_id, h.attempt, h.driver_name,
       h.acquired_at, r.driver_kind, r.driver_id,
       least(extract(epoch FROM h.renewed_at - statement_timestamp()) + h.lapse_seconds,
             extract(epoch FROM r.lease_until - statement_timestamp()))::float8 AS lease_left_seconds
FROM unnest(%(scopes)s::text[], %(keys)s::text[]) AS a(scope, key)
CROSS JOIN LATERAL (
    SELECT p.* FROM admission_permit p WHERE p.scope = a.scope AND p.key = a.key
    ORDER BY p.acquired_at, p.id LIMIT %(limit)s) h
CROSS JOIN LATERAL (SELECT slug FROM admission_tenant WHERE id = h.tenant_id OFFSET 0) t
LEFT JOIN LATERAL (
    SELECT driver_kind, driver_id, lease_until FROM admission_run WHERE id = h.run_id OFFSET 0) r ON true
ORDER BY h.scope, h.key, h.acquired_at, h.id
"""

# What the passes of the last seconds found of physical slots, by process. No locks. 0 rows: no limit is set anywhere,
# or no replica passed lately. The table holds a row for each living replica: read whole.
READ_PLACES: Final = """
SELECT process, "limit", containers_running + containers_created + containers_other AS containers,
       CASE WHEN error_at >= reported_at - interval '1 ms' THEN last_error ELSE '' END AS error,
       extract(epoch FROM statement_timestamp() - reported_at)::float8 AS seconds_ago
FROM admission_physicalreport
WHERE reported_at > statement_timestamp() - make_interval(secs => %(age)s)
"""
