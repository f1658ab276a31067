"""Submit and backpressure. See the package for the conventions and the lock order."""

from __future__ import annotations

from typing import Final

from admission.sql.blocks import BACKLOG_TAIL

# Submit: the tenant lives, its queue has room, the runs are inserted; one statement, one transaction, one round trip.
# The tenant must live, judged under its lock: a deletion (FOR UPDATE) waits for submits under way and holds off new
# ones. Its queue is counted up to `counted`, one above what there is room for, and no further; counted, not locked: a
# burst may pass the cap by what is under way. Runs are given as one JSON array; LIMIT 1 in `returned` tells the
# planner of that one tenant, or it would read all counters. A repeated idempotency key inserts nothing (read it back
# with READ_BY_KEY). At least one row: `lives` false, or `depth` without room, and id null: nothing was inserted.
# Locks: tenant FOR KEY SHARE, the new runs' keys, counter (see BACKLOG_TAIL). Index: primary key, run_tenant_state,
# run_idempotency.
INSERT_RUNS: Final = f"""
WITH owner AS (
    SELECT id FROM admission_tenant WHERE id = %(tenant_id)s AND deleting_at IS NULL FOR KEY SHARE
),
queued AS (
    SELECT count(*) AS depth FROM (
        SELECT FROM admission_run WHERE tenant_id = %(tenant_id)s AND state = 'queued' LIMIT %(limit)s) q
),
given AS (
    SELECT * FROM jsonb_to_recordset(%(runs)s::jsonb) AS g(
        position int, name text, kind text, spec jsonb, labels jsonb, backend text, harness text, concurrency_key text,
        weight int, memory_mib int, cpu float8, priority int, not_before timestamptz, queue_timeout float8,
        timeout float8, max_tries int, retry_on_interrupt bool, retry_on_failure bool, backoff float8,
        idempotency_key text, request_hash text)
),
inserted AS (
    INSERT INTO admission_run (
        tenant_id, batch_id, name, kind, state, spec, labels, backend, harness, concurrency_key, weight, memory_mib,
        cpu, priority, rank_at, not_before, delayed, queue_deadline, timeout_seconds, max_tries, retry_on_interrupt,
        retry_on_failure, backoff_seconds, created_by, created_at, idempotency_key, request_hash)
    SELECT owner.id, %(batch_id)s, name, kind, 'queued', spec, labels, backend, harness, concurrency_key, weight,
           memory_mib, cpu, priority,
           greatest(statement_timestamp(), not_before) - make_interval(secs => 60.0 * priority),
           not_before, coalesce(not_before > statement_timestamp(), false),
           statement_timestamp() + make_interval(secs => queue_timeout), timeout, max_tries, retry_on_interrupt,
           retry_on_failure, backoff, %(created_by)s, statement_timestamp(), idempotency_key, request_hash
    FROM owner, queued, given WHERE queued.depth <= %(room)s ORDER BY position
    ON CONFLICT (tenant_id, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
    RETURNING id, tenant_id, idempotency_key
),
returned AS (SELECT tenant_id FROM inserted LIMIT 1),
{BACKLOG_TAIL}
SELECT EXISTS (SELECT FROM owner) AS lives, queued.depth, inserted.id, inserted.idempotency_key
FROM queued LEFT JOIN inserted ON true ORDER BY inserted.id
"""

# Runs by idempotency key. Index: run_idempotency.
READ_BY_KEY: Final = """
SELECT id, idempotency_key, request_hash FROM admission_run
WHERE tenant_id = %(tenant_id)s AND idempotency_key = ANY(%(keys)s)
"""

# The tenant's lock before that of anything else, where more is written than the runs.
LOCK_SUBMITTER: Final = """
SELECT id FROM admission_tenant WHERE id = %(tenant_id)s AND deleting_at IS NULL FOR KEY SHARE
"""

# Counters of shared limits exist before the first run that names them, so there is nothing to back-fill later.
ENSURE_COUNTERS: Final = """
INSERT INTO admission_counter (scope, key, tenant_id, "limit")
SELECT * FROM unnest(%(scopes)s::text[], %(keys)s::text[], %(tenants)s::bigint[], %(limits)s::int[])
ORDER BY 1, 2
ON CONFLICT (scope, key) DO NOTHING
"""

# The fleet's queue depth, counted up to the cap and no further. Index: run_queue and run_delayed.
# The order is the indexes' own and costs nothing. Without it a prepared plan, which does not know the limit, hopes to
# find its rows early in a scan of the table.
COUNT_QUEUED: Final = """
SELECT (SELECT count(*) FROM (SELECT FROM admission_run WHERE state = 'queued' AND NOT delayed
                               ORDER BY tenant_id, rank_at, id LIMIT %(limit)s) a)
     + (SELECT count(*) FROM (SELECT FROM admission_run WHERE state = 'queued' AND delayed
                               ORDER BY not_before LIMIT %(limit)s) b) AS depth
"""
