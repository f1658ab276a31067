"""Admission (T1): picking, locking, admitting. See the package for the conventions and the lock order."""

from __future__ import annotations

from typing import Final

# The reading of rule A2: tenants with work and headroom in fair order, no locks; a pre-filter, never the decision.
# Index: counter_fair_order (headroom is part of the index, so tenants at their cap cost nothing), counter_start_tag.
READ_FAIR_ORDER: Final = """
SELECT c.id AS counter_id, c.tenant_id, c.virtual_time, c."limit", c."limit" - c.in_flight AS headroom,
       (SELECT t.weight::float8 FROM admission_tenant t WHERE t.id = c.tenant_id) AS share,
       coalesce((SELECT max(start_tag) FROM admission_counter WHERE scope = 'tenant'), 0) AS virtual_now
FROM admission_counter c
WHERE c.scope = 'tenant' AND c.backlog AND NOT c.paused AND (c."limit" IS NULL OR c.in_flight < c."limit")
  AND (%(only_tenant)s::bigint IS NULL OR c.tenant_id = %(only_tenant)s)
ORDER BY c.virtual_time, c.served_at NULLS FIRST, c.id
LIMIT %(page)s OFFSET %(offset)s
"""

# What drivers that wait could be given, by what they are (`n`): ids of runs, up to `wanted` each. No locks and no
# decision: who is woken by it claims like everybody else. The same conditions as in READ_FAIR_ORDER and PICK_RUNS.
# With each run what READ_FAIR_ORDER says of its tenant, so that who claims it at once need not read that again.
# Each profile stops at what it wants; one that suits nothing looks at every queue, so the caller lets time pass after
# a slow look. Index: counter_fair_order, run_queue, counter_scope_key.
READ_SUITABLE: Final = """
SELECT a.n, found.*,
       (SELECT t.weight::float8 FROM admission_tenant t WHERE t.id = found.tenant_id) AS share,
       coalesce((SELECT max(start_tag) FROM admission_counter WHERE scope = 'tenant'), 0) AS virtual_now
FROM jsonb_to_recordset(%(profiles)s::jsonb)
     AS a(n int, tenant bigint, labels jsonb, backends jsonb, memory_mib int, cpu float8, wanted int)
CROSS JOIN LATERAL (
    SELECT q.id, f.*
    FROM (
        SELECT c.id AS counter_id, c.tenant_id, c.virtual_time, c."limit", c."limit" - c.in_flight AS headroom
        FROM admission_counter c
        WHERE c.scope = 'tenant' AND c.backlog AND NOT c.paused AND (c."limit" IS NULL OR c.in_flight < c."limit")
          AND (a.tenant IS NULL OR c.tenant_id = a.tenant)
        ORDER BY c.virtual_time, c.served_at NULLS FIRST, c.id
    ) f
    CROSS JOIN LATERAL (
        SELECT q.id FROM admission_run q
        WHERE q.tenant_id = f.tenant_id AND state = 'queued' AND NOT delayed
          AND (queue_deadline IS NULL OR queue_deadline > statement_timestamp())
          AND (kind IS NULL OR kind = 'task')
          AND labels <@ a.labels
          AND (backend = '' OR a.backends ? backend OR backend <> ALL(%(known_backends)s))
          AND (a.memory_mib IS NULL OR memory_mib <= a.memory_mib) AND (a.cpu IS NULL OR cpu <= a.cpu)
          AND (harness = '' OR (
              SELECT q.weight <= coalesce(h."limit", 2147483647) - h.in_flight FROM admission_counter h
              WHERE h.scope = 'harness' AND h.key = q.harness))
          AND (concurrency_key = '' OR (
              SELECT q.weight <= coalesce(k."limit", 2147483647) - k.in_flight FROM admission_counter k
              WHERE k.scope = 'key' AND k.key = q.tenant_id || ':' || q.concurrency_key))
        ORDER BY rank_at, id LIMIT least(a.wanted, f.headroom)
    ) q
    LIMIT a.wanted
) found
"""

# Candidates: of each tenant that may be served its next `n` runs that this driver may take, both locked.
# The tenant's lock says whether a quota stands and excludes a first quota (T9) and a deletion. Those hold FOR UPDATE:
# their tenant is left out, not waited for, so that it holds up nobody else's admission, and so that locking further
# tenants after some runs can close no circle of waits. A tenant without a row in the answer is left out; one row with
# `id` null: it has nothing that suits.
# Rows that another driver is just taking are skipped. A run for a backend that does not exist suits everybody: whoever
# comes first sets it aside. A run under a full key or harness is passed over, or it would hide those behind it; that
# is a pre-filter, the counters decide. Index: primary key; run_queue, one ordered scan a tenant; counter_scope_key for
# runs that name a shared limit. In CTEs, so that each is executed once.
PICK_RUNS: Final = """
WITH asked AS (SELECT * FROM unnest(%(tenants)s::bigint[], %(counts)s::int[]) AS a(tenant_id, n)),
owner AS MATERIALIZED (
    SELECT id, slug, has_quota FROM admission_tenant
    WHERE id = ANY(%(tenants)s::bigint[]) AND deleting_at IS NULL AND paused_at IS NULL
    ORDER BY id FOR KEY SHARE SKIP LOCKED
),
picked AS MATERIALIZED (
    SELECT r.* FROM owner o JOIN asked a ON a.tenant_id = o.id CROSS JOIN LATERAL (
        SELECT id, tenant_id, rank_at, spec, weight, backend, harness, concurrency_key, memory_mib, cpu
        FROM admission_run q
        WHERE tenant_id = o.id AND state = 'queued' AND NOT delayed
          AND (queue_deadline IS NULL OR queue_deadline > statement_timestamp())
          AND (kind IS NULL OR kind = 'task')
          AND labels <@ %(labels)s::jsonb
          AND (backend = '' OR backend = ANY(%(backends)s) OR backend <> ALL(%(known_backends)s))
          AND (%(memory_mib)s::int IS NULL OR memory_mib <= %(memory_mib)s)
          AND (%(cpu)s::float8 IS NULL OR cpu <= %(cpu)s)
          AND id <> ALL (%(taken)s::bigint[])
          AND (harness = '' OR (
              SELECT q.weight <= coalesce(h."limit", 2147483647) - h.in_flight FROM admission_counter h
              WHERE h.scope = 'harness' AND h.key = q.harness))
          AND (concurrency_key = '' OR (
              SELECT q.weight <= coalesce(k."limit", 2147483647) - k.in_flight FROM admission_counter k
              WHERE k.scope = 'key' AND k.key = q.tenant_id || ':' || q.concurrency_key))
        ORDER BY rank_at, id LIMIT a.n FOR NO KEY UPDATE SKIP LOCKED
    ) r
)
SELECT o.id AS tenant_id, o.slug, o.has_quota, p.id, p.rank_at, p.spec, p.weight, p.backend, p.harness,
       p.concurrency_key, p.memory_mib, p.cpu
FROM owner o LEFT JOIN picked p ON p.tenant_id = o.id
ORDER BY o.id, p.rank_at, p.id
"""

# Lock the counters that the candidates need, in the one order; newest values. A tenant paused meanwhile has none to
# give: its runs stay queued. With V of the fair order: the highest start tag served.
# Index: counter_scope_key, counter_start_tag.
LOCK_COUNTERS: Final = """
SELECT c.id, c.scope, c.key, c.tenant_id, c."limit", c.in_flight, c.virtual_time,
       coalesce((SELECT max(start_tag) FROM admission_counter WHERE scope = 'tenant'), 0) AS virtual_now
FROM admission_counter c
WHERE (c.scope, c.key) IN (SELECT * FROM unnest(%(scopes)s::text[], %(keys)s::text[])) AND NOT c.paused
ORDER BY c.scope, c.key FOR NO KEY UPDATE
"""

# Count, admit, open the attempt, write the permits: one statement. The limit is decided by the counter's own
# predicate; the caller compares `counted` with what it asked for and rolls back on any difference. `admitted_at` is
# read after the counters were locked, so in the history a successor is never admitted before its predecessor's release
# (rule A30).
_admitting: Final = """
WITH counted AS (
    UPDATE admission_counter c
    SET in_flight = c.in_flight + d.weight,
        virtual_time = coalesce(d.virtual_time, c.virtual_time),
        start_tag = coalesce(d.start_tag, c.start_tag),
        served_at = CASE WHEN d.virtual_time IS NULL THEN c.served_at ELSE clock_timestamp() END
    FROM unnest(%(counters)s::bigint[], %(weights)s::int[], %(virtual_times)s::float8[], %(start_tags)s::float8[])
         AS d(id, weight, virtual_time, start_tag)
    WHERE c.id = d.id AND (d.weight = 0 OR d.weight <= coalesce(c."limit", 2147483647) - c.in_flight)
    RETURNING c.id
),
admitted AS (
    UPDATE admission_run r
    SET state = 'admitted', reason = '', detail = '', attempt = r.attempt + 1, epoch = r.epoch + 1,
        driver_kind = %(driver_kind)s, driver_id = %(driver_id)s, driver_incarnation = %(incarnation)s,
        driver_name = %(driver_name)s, admitted_at = clock_timestamp(), started_at = NULL, run_deadline = NULL,
        start_deadline = clock_timestamp() + make_interval(secs => %(start_deadline_seconds)s),
        lease_until = clock_timestamp() + make_interval(secs => %(lease_seconds)s)
    WHERE r.id = ANY(%(runs)s) AND r.state = 'queued'
    RETURNING r.id, r.attempt, r.epoch, r.tenant_id, r.weight, r.admitted_at
),
opened AS (
    INSERT INTO admission_attempt (run_id, number, tenant_id, epoch, weight, driver_kind, driver_id, driver_name,
                                   maker, admitted_at)
    SELECT id, attempt, tenant_id, epoch, weight, %(driver_kind)s, %(driver_id)s, %(driver_name)s,
           %(incarnation)s::uuid, admitted_at
    FROM admitted
),
permitted AS (
    INSERT INTO admission_permit (holder, scope, key, weight, tenant_id, run_id, attempt, driver_name, acquired_at,
                                  renewed_at, lapse_seconds)
    SELECT a.id || '.' || a.attempt, n.scope, n.key, a.weight, a.tenant_id, a.id, a.attempt, %(driver_name)s,
           a.admitted_at, a.admitted_at, %(lapse_seconds)s
    FROM admitted a
    JOIN unnest(%(needs_run)s::bigint[], %(needs_scope)s::text[], %(needs_key)s::text[]) AS n(run_id, scope, key)
      ON n.run_id = a.id
)"""


def admit_runs(also: str = "") -> str:
    """The admitting statement. `also`: what is written with it, as further parts that read `admitted`."""
    return f"""{_admitting}{also}
SELECT id, attempt, epoch, (SELECT count(*) FROM counted) AS counted FROM admitted
"""


ADMIT_RUNS: Final = admit_runs()

# Set aside rows that cannot be executed by anybody (rule A25). Rows are locked by PICK_RUNS already.
SET_ASIDE: Final = """
UPDATE admission_run r
SET state = 'failed', reason = 'invalid_spec', detail = d.detail, epoch = r.epoch + 1,
    finished_at = statement_timestamp()
FROM unnest(%(runs)s::bigint[], %(details)s::text[]) AS d(id, detail)
WHERE r.id = d.id AND r.state = 'queued'
RETURNING r.id
"""

# Clear the backlog flag of tenants with nothing queued. Looked at first without a lock: most tenants that had nothing
# for this driver have something for another. The row lock makes submitters wait (they take FOR KEY SHARE), and one
# that is under way makes this skip. The emptiness that counts is judged in a later statement, hence on a newer
# snapshot.
LOCK_BACKLOGS: Final = """
SELECT c.id FROM admission_counter c
WHERE c.id = ANY(%(counters)s) AND c.backlog AND NOT EXISTS (
    SELECT FROM admission_run r WHERE r.tenant_id = c.tenant_id AND r.state = 'queued' AND NOT r.delayed)
ORDER BY c.scope, c.key FOR UPDATE OF c SKIP LOCKED
"""
CLEAR_BACKLOGS: Final = """
UPDATE admission_counter c SET backlog = false
WHERE c.id = ANY(%(counters)s) AND NOT EXISTS (
    SELECT FROM admission_run r WHERE r.tenant_id = c.tenant_id AND r.state = 'queued' AND NOT r.delayed)
RETURNING c.id
"""
