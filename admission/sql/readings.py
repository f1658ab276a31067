"""Readings: no locks, one snapshot each. See the package for the conventions and the lock order."""

from __future__ import annotations

from typing import Final

# Rule A3: task-shaped runs that hold compute, plus weights held by other systems' permits, by tenant, in one snapshot.
READ_IN_FLIGHT: Final = """
SELECT tenant_id, sum(weight)::bigint AS in_flight FROM (
    SELECT tenant_id, weight FROM admission_run
    WHERE state IN ('admitted', 'running') AND (kind IS NULL OR kind = 'task')
    UNION ALL
    SELECT tenant_id, weight FROM admission_permit WHERE scope = 'tenant' AND run_id IS NULL) held
GROUP BY tenant_id
"""

# Rule A5 in one snapshot: counters whose number differs from their permits', either way round. 0 rows: conserved.
READ_DRIFT: Final = """
SELECT coalesce(c.scope, p.scope) AS scope, coalesce(c.key, p.key) AS key, coalesce(c.in_flight, 0) AS in_flight,
       coalesce(p.weight, 0) AS permits, c."limit"
FROM admission_counter c
FULL JOIN (SELECT scope, key, sum(weight)::bigint AS weight FROM admission_permit GROUP BY scope, key) p
  ON p.scope = c.scope AND p.key = c.key
WHERE coalesce(c.in_flight, 0) <> coalesce(p.weight, 0)
"""

# Rule A30: the highest weight a tenant ever held at once, from the attempts. Releases count before admissions of the
# same instant: admitted_at is read after the release was committed.
READ_HIGHEST_CONCURRENCY: Final = """
SELECT coalesce(max(held), 0)::bigint AS highest FROM (
    SELECT sum(change) OVER (ORDER BY at, change ROWS UNBOUNDED PRECEDING) AS held FROM (
        SELECT admitted_at AS at, weight AS change FROM admission_attempt WHERE tenant_id = %(tenant_id)s
        UNION ALL
        SELECT released_at, -weight FROM admission_attempt
        WHERE tenant_id = %(tenant_id)s AND released_at IS NOT NULL) steps) walk
"""
