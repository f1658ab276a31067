"""What is deleted after its time: logs of runs that ended long ago, answers of claims."""

from __future__ import annotations

from controlplane.core.conf import conf
from controlplane.core.loops import Progress
from controlplane.core.sql import execute, one
from runners import sql

BATCH = 1000
MOST_BATCHES = 100
DAY_SECONDS = 86_400


def delete_expired() -> Progress:
    """Delete in short statements, a bounded number of them; the next call goes on. Returns the rows deleted."""
    ends = execute(sql.DELETE_ORPHANED_LOG_ENDS, {"limit": BATCH})
    return Progress({"log_chunks": _old_logs(), "log_ends": ends, "claims": _old_claims()})


def _old_logs() -> int:
    total, after = 0, 0
    for _ in range(MOST_BATCHES):
        age = conf().log_retention_days * DAY_SECONDS
        row = one(sql.DELETE_OLD_LOGS, {"age": age, "after": after, "limit": BATCH})
        total += row["deleted"] if row else 0
        if row is None or row["reached"]:
            break
        after = row["last"]
    return total


def _old_claims() -> int:
    total = 0
    for _ in range(MOST_BATCHES):
        deleted = execute(sql.DELETE_OLD_CLAIMS, {"age": conf().claim_replay_seconds, "limit": BATCH})
        total += deleted
        if deleted < BATCH:
            break
    return total
