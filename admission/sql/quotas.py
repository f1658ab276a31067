"""Quotas (T8, T9, T10). See the package for the conventions and the lock order."""

from __future__ import annotations

from typing import Final

# Held by every change of a quota: they exclude each other, and no admission waits for them.
LOCK_QUOTA: Final = """
SELECT id, has_quota FROM admission_tenant WHERE id = %(tenant_id)s FOR NO KEY UPDATE
"""

# Held for a first quota, a removal and a deletion: waits for, and holds off, every admission of this tenant.
LOCK_TENANT: Final = """
SELECT id, has_quota FROM admission_tenant WHERE id = %(tenant_id)s FOR UPDATE
"""

# The tenant's open runs in lock order: whoever writes a run's permits holds its run, so that nobody meets over them in
# another order. Index: run_tenant_state.
LOCK_OPEN_RUNS: Final = """
SELECT id FROM admission_run WHERE tenant_id = %(tenant_id)s AND state IN ('admitted', 'running')
ORDER BY id FOR NO KEY UPDATE
"""
# Their permits, fresh.
BACK_FILL_PERMITS: Final = """
INSERT INTO admission_permit (holder, scope, key, weight, tenant_id, run_id, attempt, driver_name, acquired_at,
                              renewed_at, lapse_seconds)
SELECT r.id || '.' || r.attempt, 'tenant', r.tenant_id::text, r.weight, r.tenant_id, r.id, r.attempt, r.driver_name,
       clock_timestamp(), clock_timestamp(), %(lapse_seconds)s
FROM admission_run r
WHERE r.tenant_id = %(tenant_id)s AND r.state IN ('admitted', 'running') AND (r.kind IS NULL OR r.kind = 'task')
ON CONFLICT (holder, scope) DO NOTHING
"""
LOCK_TENANT_COUNTER: Final = """
SELECT id, "limit", in_flight FROM admission_counter
WHERE scope = 'tenant' AND key = %(tenant_id)s::text FOR NO KEY UPDATE
"""

# The counter becomes what its permits sum to. A statement of its own after the lock: in one statement the sum would be
# taken from a snapshot older than the lock and could make the drift it is meant to exclude.
RECOUNT: Final = """
UPDATE admission_counter c
SET "limit" = %(limit)s,
    in_flight = coalesce((SELECT sum(p.weight) FROM admission_permit p WHERE p.scope = c.scope AND p.key = c.key), 0)
WHERE c.id = %(counter)s
RETURNING c.in_flight
"""

# A standing quota changes: the limit alone. Nothing is killed and nothing admitted until it drained (rule A15). A
# tenant that returns from below its cap does not bring saved-up virtual time along.
SET_LIMIT: Final = """
UPDATE admission_counter c
SET "limit" = %(limit)s,
    virtual_time = greatest(c.virtual_time, (SELECT max(start_tag) FROM admission_counter WHERE scope = 'tenant'))
WHERE c.scope = %(scope)s AND c.key = %(key)s
RETURNING c.in_flight
"""
# The limit that the change meets, under the lock that the change needs anyway. Index: counter_scope_key.
LOCK_LIMIT: Final = """
SELECT "limit" FROM admission_counter WHERE scope = %(scope)s AND key = %(key)s FOR NO KEY UPDATE
"""
DELETE_QUOTA_PERMITS: Final = """
DELETE FROM admission_permit WHERE scope = 'tenant' AND key = %(tenant_id)s::text AND run_id IS NOT NULL
"""

# What a tenant uses now: by its counter where a quota stands, else by its runs. No locks. Index: run_tenant_state.
READ_TENANT_USE: Final = """
SELECT t.has_quota, c."limit",
       CASE WHEN t.has_quota THEN c.in_flight ELSE c.in_flight + coalesce((
           SELECT sum(r.weight) FROM admission_run r
           WHERE r.tenant_id = t.id AND r.state IN ('admitted', 'running') AND (r.kind IS NULL OR r.kind = 'task')
       ), 0)::int END AS in_flight
FROM admission_tenant t JOIN admission_counter c ON c.scope = 'tenant' AND c.key = t.id::text
WHERE t.id = %(tenant_id)s
"""
