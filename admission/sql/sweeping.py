"""Leader-gated passes. See the package for the conventions and the lock order."""

from __future__ import annotations

from typing import Final

# Tenants whose pause is over. Index: tenant_resume.
READ_PAUSES_OVER: Final = """
SELECT id FROM admission_tenant WHERE resume_at <= statement_timestamp() ORDER BY resume_at LIMIT %(limit)s
"""

# A tenant that is being deleted and has something to do: queued runs to cancel, or nothing left that it waits for.
# No locks. Index: tenant_deleting, run_tenant_state, the one on permits' tenants.
READ_DELETABLE: Final = """
SELECT t.id FROM admission_tenant t
WHERE t.deleting_at IS NOT NULL AND (
    EXISTS (SELECT FROM admission_run r WHERE r.tenant_id = t.id AND r.state = 'queued')
    OR (NOT EXISTS (SELECT FROM admission_run r WHERE r.tenant_id = t.id AND r.state IN ('admitted', 'running'))
        AND (SELECT count(*) FROM admission_permit p WHERE p.tenant_id = t.id) = 0))
ORDER BY t.deleting_at, t.id LIMIT 1
"""
# Waits for admissions, claims and submits under way; those that come later find it marked. Index: primary key.
LOCK_DELETING: Final = """
SELECT id FROM admission_tenant WHERE id = %(tenant_id)s AND deleting_at IS NOT NULL FOR UPDATE
"""
# Index: run_tenant_state.
READ_QUEUED: Final = """
SELECT id FROM admission_run WHERE tenant_id = %(tenant_id)s AND state = 'queued' ORDER BY id LIMIT %(limit)s
"""

# Queued runs that asked to fail where nobody can take them and have waited for at least so long, since they were
# submitted, due, or given back; together with what they ask of a driver. Candidates, no locks. Index: run_no_runner,
# attempt_number.
READ_UNSERVED: Final = """
SELECT r.tenant_id, r.labels, r.backend, r.memory_mib, r.cpu,
       (array_agg(r.id ORDER BY r.id))[1:%(limit)s] AS runs, (array_agg(r.epoch ORDER BY r.id))[1:%(limit)s] AS epochs
FROM admission_run r
WHERE r.state = 'queued' AND r.spec ->> 'on_no_runner' = 'fail'
  AND greatest(r.created_at, r.not_before, CASE WHEN r.attempt > 0 THEN (
          SELECT max(t.released_at) FROM admission_attempt t WHERE t.run_id = r.id) END)
      <= statement_timestamp() - make_interval(secs => %(seconds)s)
GROUP BY r.tenant_id, r.labels, r.backend, r.memory_mib, r.cpu
ORDER BY min(r.id) LIMIT %(limit)s
"""

# When a runner's call was last accepted, as the leases of what runners hold tell it. Null: they hold nothing.
# Index: run_lease, from its end.
READ_LAST_RUNNER_CALL: Final = """
SELECT max(lease_until) - make_interval(secs => %(lease)s) AS at FROM admission_run
WHERE state IN ('admitted', 'running') AND lease_until IS NOT NULL AND driver_kind = 'runner'
"""

# Runs that hold a permit not renewed for as long as permits of runs live: candidates, no locks. (A row with a longer
# life of its own, from before the setting was lowered, is sorted out by LOCK_LAPSED.) Index: permit_renewed.
READ_LAPSED_RUN_PERMITS: Final = """
SELECT DISTINCT p.run_id AS id FROM admission_permit p
WHERE p.renewed_at < statement_timestamp() - make_interval(secs => %(lapse)s) AND p.run_id IS NOT NULL
  AND p.renewed_at < statement_timestamp() - make_interval(secs => p.lapse_seconds)
ORDER BY 1 LIMIT %(limit)s
"""
# The same under one limit, after a refusal by it. Index: permit_counter.
READ_LAPSED_UNDER_LIMIT: Final = """
SELECT DISTINCT p.run_id AS id FROM admission_permit p
WHERE p.scope = %(scope)s AND p.key = %(key)s AND p.run_id IS NOT NULL
  AND p.renewed_at < statement_timestamp() - make_interval(secs => p.lapse_seconds)
ORDER BY 1 LIMIT %(limit)s
"""
# Limits under which a permit lapsed for as long as permits of runs live. Unlimited counters refuse nobody. No locks.
# Index: permit_renewed, counter_scope_key.
READ_LAPSED_LIMITS: Final = """
SELECT DISTINCT p.scope, p.key FROM admission_permit p JOIN admission_counter c ON c.scope = p.scope AND c.key = p.key
WHERE p.renewed_at < statement_timestamp() - make_interval(secs => %(lapse)s) AND c."limit" IS NOT NULL
  AND p.renewed_at < statement_timestamp() - make_interval(secs => p.lapse_seconds)
LIMIT %(limit)s
"""
# The runs first, then their permits: the lock order. A driver's renewal locks the run before the permit, so it is
# over, or waits for us and then finds the epoch moved. Index: primary key.
LOCK_RUNS: Final = """
SELECT id, epoch, attempt, driver_kind FROM admission_run WHERE id = ANY(%(runs)s) AND state IN ('admitted', 'running')
ORDER BY id FOR NO KEY UPDATE
"""
# Judged again under the lock, by a statement newer than it. Index: permit_run.
LOCK_LAPSED: Final = """
SELECT p.run_id AS id FROM admission_permit p
WHERE p.run_id = ANY(%(runs)s) AND p.renewed_at < statement_timestamp() - make_interval(secs => p.lapse_seconds)
ORDER BY p.id FOR UPDATE
"""

# The cause of such a taking, on the run row `r`; its permits are locked by LOCK_LAPSED, so it cannot change any more.
PERMIT_LAPSED: Final = """
EXISTS (SELECT FROM admission_permit p WHERE p.run_id = r.id AND p.attempt = r.attempt
        AND p.renewed_at < statement_timestamp() - make_interval(secs => p.lapse_seconds))
"""

# Lapsed permits of outside systems go; their counters are lowered by exactly what was deleted. The DELETE judges the
# lapse by the row's own columns, so again after a wait for its renewal. `scope` null: of every limit.
# Locks: permits, then counters in order. Index: permit_run (run_id null), counter_scope_key.
REAP_OUTSIDE: Final = """
WITH lapsed AS (
    SELECT id FROM admission_permit
    WHERE run_id IS NULL AND renewed_at < statement_timestamp() - make_interval(secs => lapse_seconds)
      AND (%(scope)s::text IS NULL OR (scope = %(scope)s AND key = %(key)s))
    ORDER BY id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
),
deleted AS (
    DELETE FROM admission_permit p USING lapsed l
    WHERE p.id = l.id AND p.renewed_at < statement_timestamp() - make_interval(secs => p.lapse_seconds)
    RETURNING p.holder, p.scope, p.key, p.weight
),
freed AS (SELECT scope, key, sum(weight)::int AS weight FROM deleted GROUP BY scope, key),
ordered AS (
    SELECT c.id, f.weight FROM admission_counter c JOIN freed f USING (scope, key)
    ORDER BY c.scope, c.key FOR NO KEY UPDATE OF c
),
lowered AS (
    UPDATE admission_counter c SET in_flight = c.in_flight - o.weight FROM ordered o WHERE c.id = o.id RETURNING c.id
)
SELECT holder, scope, key, weight FROM deleted
"""

# Conservation (A17): the counter's row first; its permits are summed by the next statement, whose snapshot is newer
# than the lock. In one statement the sum would be older than the lock and could itself make a drift. Index:
# counter_scope_key.
LOCK_COUNTER: Final = """
SELECT id, in_flight FROM admission_counter WHERE scope = %(scope)s AND key = %(key)s FOR NO KEY UPDATE
"""
SUM_PERMITS: Final = """
SELECT coalesce(sum(weight), 0)::int AS weight, (array_agg(holder ORDER BY id))[1:100] AS holders
FROM admission_permit WHERE scope = %(scope)s AND key = %(key)s
"""
SET_COUNTER: Final = "UPDATE admission_counter SET in_flight = %(weight)s WHERE id = %(counter)s"

# One row for each number of the charts. Index: run_queue, run_delayed, run_start_deadline, run_run_deadline,
# run_finished, counter_scope_key.
SAMPLE: Final = """
INSERT INTO core_sample (at, series, key, value)
SELECT date_trunc('minute', statement_timestamp()), series, key, value FROM (
    SELECT 'runs' AS series, 'queued' AS key, (
        (SELECT count(*) FROM (SELECT FROM admission_run WHERE state = 'queued' AND NOT delayed LIMIT %(cap)s) a)
        + (SELECT count(*) FROM (SELECT FROM admission_run WHERE state = 'queued' AND delayed LIMIT %(cap)s) b)
        )::float8 AS value
    UNION ALL
    SELECT 'runs', 'admitted', count(*) FROM admission_run WHERE state = 'admitted'
    UNION ALL
    SELECT 'runs', 'running', count(*) FROM admission_run WHERE state = 'running'
    UNION ALL
    SELECT 'ended', state, count(*) FROM admission_run
    WHERE finished_at >= date_trunc('minute', statement_timestamp()) - interval '1 minute'
      AND finished_at < date_trunc('minute', statement_timestamp())
    GROUP BY state
    UNION ALL
    SELECT 'in_flight', t.slug, c.in_flight FROM admission_counter c JOIN admission_tenant t ON t.id = c.tenant_id
    WHERE c.scope = 'tenant' AND c.in_flight > 0
    UNION ALL
    SELECT 'limit', t.slug, c."limit" FROM admission_counter c JOIN admission_tenant t ON t.id = c.tenant_id
    WHERE c.scope = 'tenant' AND c."limit" IS NOT NULL
) n
ON CONFLICT (series, key, at) DO NOTHING
RETURNING id
"""

# Runs that should have moved and did not: a cancel (also by a run deadline) that its driver has not answered; a run
# that has waited a day although its tenant is admitted. Per tenant the oldest only. Index: run_driver, run_queue.
READ_STUCK: Final = """
SELECT r.id, t.slug AS tenant, 'cancel_unanswered' AS why, r.driver_name,
       extract(epoch FROM statement_timestamp() - r.cancel_requested_at)::float8 AS seconds
FROM admission_run r JOIN admission_tenant t ON t.id = r.tenant_id
WHERE r.state IN ('admitted', 'running')
  AND r.cancel_requested_at < statement_timestamp() - make_interval(secs => %(stuck)s)
UNION ALL
SELECT q.id, t.slug, 'never_admitted', '', extract(epoch FROM statement_timestamp() - q.rank_at)::float8
FROM admission_tenant t CROSS JOIN LATERAL (
    SELECT id, rank_at FROM admission_run r
    WHERE r.tenant_id = t.id AND r.state = 'queued' AND NOT r.delayed
      AND r.rank_at < statement_timestamp() - make_interval(secs => %(queued)s)
      AND r.created_at < statement_timestamp() - make_interval(secs => %(queued)s)
    ORDER BY r.rank_at, r.id LIMIT 10) q
WHERE t.paused_at IS NULL
ORDER BY id LIMIT %(limit)s
"""
