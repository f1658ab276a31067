"""What is kept how long. Conditional, batched deletes: any process may run them, at any moment."""

from __future__ import annotations

from controlplane.core.conf import conf
from controlplane.core.sql import execute

BATCH = 2000
MOST_BATCHES = 50

# Output of attempts whose run ended before the cut-off. Index: run_finished, logchunk_position.
DELETE_LOGS = """
DELETE FROM runners_logchunk WHERE id IN (
    SELECT l.id FROM admission_run r JOIN runners_logchunk l ON l.run_id = r.id
    WHERE r.finished_at < statement_timestamp() - make_interval(secs => %(seconds)s)
    ORDER BY r.finished_at LIMIT %(limit)s)
"""

# Stored answers of claims that can no longer be asked for again. Index: on `at`.
DELETE_CLAIMS = """
DELETE FROM runners_claimrequest WHERE id IN (
    SELECT id FROM runners_claimrequest
    WHERE at < statement_timestamp() - make_interval(secs => %(seconds)s) ORDER BY at LIMIT %(limit)s)
"""


def delete_expired() -> dict[str, int]:
    """One pass, bounded; what is left goes at the next."""
    settings = conf()
    return {
        "log_chunks": _delete(DELETE_LOGS, settings.log_retention_days * 86_400),
        "claim_answers": _delete(DELETE_CLAIMS, settings.claim_replay_seconds),
    }


def _delete(statement: str, seconds: float) -> int:
    total = 0
    for _ in range(MOST_BATCHES):
        deleted = execute(statement, {"seconds": seconds, "limit": BATCH})
        total += deleted
        if deleted < BATCH:
            break
    return total
