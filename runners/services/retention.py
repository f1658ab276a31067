"""What is deleted after its time: logs and artifacts of runs that ended long ago, answers of claims."""

from __future__ import annotations

import logging

from django.core.files.storage import Storage

from controlplane.core.conf import conf
from controlplane.core.loops import Progress
from controlplane.core.sql import execute, one, rows
from runners import kept_sql, sql
from runners.storage import artifact_storage

log = logging.getLogger(__name__)

BATCH = 1000
MOST_BATCHES = 100
DAY_SECONDS = 86_400
DELETE_BATCH = 100
DOOMED_SECONDS = 60.0
"""An upload under way that was given up may be writing still; its bytes are deleted after that."""


def delete_expired() -> Progress:
    """Delete in short statements, a bounded number of them; the next call goes on. Returns the rows deleted."""
    ends = execute(sql.DELETE_ORPHANED_LOG_ENDS, {"limit": BATCH})
    found = {"log_chunks": _old_logs(), "log_ends": ends, "claims": _old_claims(), "artifacts": delete_artifacts()}
    return Progress(found)


def delete_artifacts() -> int:
    """Doom what broke off or is past its time, then delete the bytes of what is doomed, and last the rows.

    In this order a crash leaves a row that names what may be there, never bytes that no row names.
    """
    settings = conf()
    execute(kept_sql.DOOM_UNFINISHED, {"age": settings.artifact_upload_seconds, "limit": BATCH})
    after = 0
    for _ in range(MOST_BATCHES):
        age = settings.artifact_retention_days * DAY_SECONDS
        row = one(kept_sql.DOOM_OLD, {"age": age, "after": after, "limit": BATCH})
        if row is None or row["reached"]:
            break
        after = row["last"]
    return _delete_doomed(min(DOOMED_SECONDS, settings.artifact_upload_seconds))


def _delete_doomed(age: float) -> int:
    storage, total = artifact_storage(), 0
    for _ in range(MOST_BATCHES):
        doomed = rows(kept_sql.READ_DOOMED, {"age": age, "limit": DELETE_BATCH})
        gone = [row["id"] for row in doomed if _deleted(storage, row["key"])]
        total += execute(kept_sql.FORGET_ARTIFACTS, {"ids": gone}) if gone else 0
        if len(doomed) < DELETE_BATCH or not gone:
            break
    return total


def _deleted(storage: Storage, key: str) -> bool:
    """Deleting what is not there is fine. A storage that fails is asked again by the next sweep; the row stays."""
    try:
        storage.delete(key)
    except Exception:
        log.exception("artifacts.not_deleted", extra={"key": key})
        return False
    return True


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
