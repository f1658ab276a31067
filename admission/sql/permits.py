"""Permits by identity (rules A4-A8). See the package for the conventions and the lock order."""

from __future__ import annotations

from typing import Final

# Claim one permit. One statement, one transaction, one round trip.
# Locks: tenant FOR KEY SHARE, the permit's unique key, then the counter row, which is held for the commit's flush
# only. The permit is inserted first: a second claim of the same id, on another connection at the same instant, waits
# on the unique key and then inserts nothing, so it can never count. (Counting first and inserting ON CONFLICT DO
# NOTHING leaves a permanent phantom.) Index: permit_holder_scope, counter_scope_key.
# Returns one row: claimed true = granted; false = this id exists (read it: held or conflict) or the tenant is unknown.
# Raises WH001 when the limit refuses: the whole statement is undone.
CLAIM_PERMIT: Final = """
WITH owner AS (
    SELECT id FROM admission_tenant WHERE id = %(tenant_id)s AND deleting_at IS NULL FOR KEY SHARE
),
inserted AS (
    INSERT INTO admission_permit (holder, scope, key, weight, tenant_id, run_id, attempt, driver_name,
                                  acquired_at, renewed_at, lapse_seconds)
    SELECT %(holder)s, %(scope)s, %(key)s, %(weight)s, id, NULL, NULL, %(driver_name)s,
           clock_timestamp(), clock_timestamp(), %(lapse_seconds)s
    FROM owner
    ON CONFLICT (holder, scope) DO NOTHING
    RETURNING scope, key, weight
),
counted AS (
    UPDATE admission_counter c SET in_flight = c.in_flight + i.weight FROM inserted i
    WHERE c.scope = i.scope AND c.key = i.key AND i.weight <= coalesce(c."limit", 2147483647) - c.in_flight
    RETURNING c.id
)
SELECT CASE WHEN EXISTS (SELECT FROM counted) THEN true
            WHEN EXISTS (SELECT FROM inserted) THEN admission_refuse_permit()
            ELSE false END AS claimed,
       EXISTS (SELECT FROM owner) AS tenant_known
"""

# Whether this many slots are free now. A refusal may be out of date: a claim that waited for the release of its own id
# judged the counter as it was before the wait. Index: counter_scope_key.
READ_ROOM: Final = """
SELECT %(weight)s <= coalesce("limit", 2147483647) - in_flight AS room FROM admission_counter
WHERE scope = %(scope)s AND key = %(key)s
"""

# What a permit with this id holds. Index: permit_holder_scope.
READ_PERMIT: Final = """
SELECT scope, key, weight, tenant_id, renewed_at, lapse_seconds,
       extract(epoch FROM renewed_at - statement_timestamp()) + lapse_seconds AS lapses_in_seconds
FROM admission_permit WHERE holder = %(holder)s AND scope = %(scope)s
"""

# Release one permit by identity; what was deleted is what is subtracted. Locks: permit, then counter.
# 0 rows: it was not held (a repeat, or reaped). Index: permit_holder_scope, counter_scope_key.
RELEASE_PERMIT: Final = """
WITH deleted AS (
    DELETE FROM admission_permit
    WHERE holder = %(holder)s AND scope = %(scope)s AND tenant_id = %(tenant_id)s AND run_id IS NULL
    RETURNING scope, key, weight
)
UPDATE admission_counter c SET in_flight = c.in_flight - d.weight FROM deleted d
WHERE c.scope = d.scope AND c.key = d.key
RETURNING d.weight, c.backlog OR c.scope <> 'tenant' AS wakes
"""

# Renew outside permits. Locks: the permit rows. A missing holder in the answer: gone, its work must stop.
RENEW_PERMITS: Final = """
WITH held AS (
    SELECT id FROM admission_permit
    WHERE holder = ANY(%(holders)s) AND scope = %(scope)s AND tenant_id = %(tenant_id)s AND run_id IS NULL
    ORDER BY id FOR NO KEY UPDATE
)
UPDATE admission_permit p SET renewed_at = statement_timestamp() FROM held h WHERE p.id = h.id
RETURNING p.holder, p.lapse_seconds
"""
