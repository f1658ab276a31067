"""Tenants as callers: every call of one begins here. See the package for the conventions and the lock order."""

from __future__ import annotations

from typing import Final

# Named, not `*`: a statement that is prepared fails when a column is added.
TENANT_COLUMNS: Final = (
    "id", "slug", "name", "weight", "has_quota", "paused_at", "pause_note", "resume_at", "deleting_at", "queue_depth",
    "created_at",
)  # fmt: skip

# Whose token has this hash, with the tenant's row. 0 rows: unknown, revoked, expired, or an operator's.
# `stale`: its last use is long enough ago to be written again. No locks. Index: unique hash, primary key.
FIND_TENANT: Final = f"""
SELECT {", ".join(f"t.{name}" for name in TENANT_COLUMNS)}, k.id AS used, k.shown,
       k.last_used_at IS NULL OR k.last_used_at < statement_timestamp() - make_interval(secs => %(resolution)s)
           AS stale
FROM admission_apitoken k JOIN admission_tenant t ON t.id = k.tenant_id
WHERE k.hash = %(hash)s AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > statement_timestamp())
"""

# That a token was used; the predicate keeps many calls at once from writing it many times. Lock: the row, not its key.
NOTE_USE: Final = """
UPDATE admission_apitoken SET last_used_at = statement_timestamp()
WHERE id = %(used)s
  AND (last_used_at IS NULL OR last_used_at < statement_timestamp() - make_interval(secs => %(resolution)s))
"""
