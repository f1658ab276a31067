"""Building blocks: the tails that every statement of a kind shares. See the package for the conventions and the lock order."""

from __future__ import annotations

from typing import Final

# Tail of every statement that ends a hold: takes a CTE `moved(id, attempt)`, deletes those permits and lowers their
# counters by exactly what was deleted. Counters are locked in order before they are written. Nothing is clamped: if
# permits and counter ever disagreed, the database's check refuses the negative counter and the transaction fails.
RELEASE_TAIL: Final = """
deleted AS (
    DELETE FROM admission_permit p USING moved m
    WHERE p.run_id = m.id AND p.attempt = m.attempt
    RETURNING p.scope, p.key, p.weight
),
freed AS (SELECT scope, key, sum(weight)::int AS weight FROM deleted GROUP BY scope, key),
ordered AS (
    SELECT c.id, f.weight FROM admission_counter c JOIN freed f USING (scope, key)
    ORDER BY c.scope, c.key FOR NO KEY UPDATE OF c
),
lowered AS (
    UPDATE admission_counter c SET in_flight = c.in_flight - o.weight FROM ordered o WHERE c.id = o.id
    RETURNING c.id
)"""

# Says that a tenant may have something queued. FOR KEY SHARE waits for a picker that is just clearing the flag (it holds
# FOR UPDATE) and reads the row as it stands then: without it, the new run would wait until the tenant's next submit.
# Takes a CTE `returned(tenant_id)`. Index: counter_scope_key.
BACKLOG_TAIL: Final = """
marked AS (
    SELECT c.id, c.backlog FROM admission_counter c
    WHERE c.scope = 'tenant' AND c.key IN (SELECT DISTINCT tenant_id::text FROM returned)
    ORDER BY c.key FOR KEY SHARE OF c
),
awake AS (
    UPDATE admission_counter c SET backlog = true FROM marked m WHERE c.id = m.id AND NOT m.backlog RETURNING c.id
)"""
