"""Building blocks: tails that statements of a kind share. See the package for the conventions and the lock order."""

from __future__ import annotations

from typing import Final

# Tail of every statement that ends a hold: takes a CTE `moved(id, attempt)`, deletes those permits and lowers their
# counters by exactly what was deleted. Counters are locked in order before they are written. Nothing is clamped: if
# permits and counter ever disagreed, the database's check refuses the negative counter and the transaction fails.
# `wakes`: somebody may have waited for what was freed.
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
    RETURNING c.id, c.backlog OR c.scope <> 'tenant' AS wakes
)"""

# The same for holds of which some go back to the queue: takes `returned(tenant_id)` too and says, in the same write of
# the same row, that those tenants have something queued. Two writes would not do: PostgreSQL silently drops the second
# update of a row in one statement, and either the counter kept the weight for ever or the run waited unseen.
RETURN_TAIL: Final = """
deleted AS (
    DELETE FROM admission_permit p USING moved m
    WHERE p.run_id = m.id AND p.attempt = m.attempt
    RETURNING p.scope, p.key, p.weight
),
wanted AS (
    SELECT scope, key, sum(weight)::int AS weight, bool_or(wakes) AS wakes FROM (
        SELECT scope, key, weight, false AS wakes FROM deleted
        UNION ALL SELECT 'tenant', tenant_id::text, 0, true FROM returned) w
    GROUP BY scope, key
),
ordered AS (
    SELECT c.id, w.weight, w.wakes FROM admission_counter c JOIN wanted w USING (scope, key)
    ORDER BY c.scope, c.key FOR NO KEY UPDATE OF c
),
lowered AS (
    UPDATE admission_counter c SET in_flight = c.in_flight - o.weight, backlog = c.backlog OR o.wakes
    FROM ordered o WHERE c.id = o.id
    RETURNING c.id
)"""

# Says that a tenant may have something queued. FOR KEY SHARE waits for a picker that is just clearing the flag (it
# holds FOR UPDATE) and reads the row as it stands then: without it, the new run would wait until the tenant's next
# submit. `asleep` locks in order what `awake` writes, and only that: a submit to a busy tenant never waits for an
# admission. It asks `m.backlog`, read under the lock; the row's own value in this statement may be older than the
# lock.
# Takes a CTE `returned(tenant_id)`. Index: counter_scope_key.
BACKLOG_TAIL: Final = """
marked AS (
    SELECT c.id, c.backlog FROM admission_counter c
    WHERE c.scope = 'tenant' AND c.key IN (SELECT DISTINCT tenant_id::text FROM returned)
    ORDER BY c.key FOR KEY SHARE OF c
),
asleep AS (
    SELECT c.id FROM admission_counter c JOIN marked m ON m.id = c.id WHERE NOT m.backlog
    ORDER BY c.key FOR NO KEY UPDATE OF c
),
awake AS (
    UPDATE admission_counter c SET backlog = true FROM asleep a WHERE c.id = a.id RETURNING c.id
)"""

BOUND_IDLE: Final = """CASE WHEN current_setting('idle_in_transaction_session_timeout') = '0'
            THEN set_config('idle_in_transaction_session_timeout', '10s', true) END AS bounded"""
"""For the statement that begins an admission: a driver that is stopped inside it holds the hot counter, and with it
the fleet, until the server ends its session. Where the role has a time-out of its own, that one holds; where it has
none, this one, for this transaction."""
