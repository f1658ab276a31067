"""What leadership keeps how long. Short, conditional deletes; any process may run them at any moment."""

from __future__ import annotations

from controlplane.core.conf import conf
from controlplane.core.loops import Progress
from controlplane.core.sql import execute
from leadership import sql
from leadership.models import FireState

BATCH = 2000
MOST_BATCHES = 50
DAY_SECONDS = 86_400
FAILED_FACTOR = 4
PLACE_DAYS = 1.0
INTENT_DAYS = 90.0
"""The key of a delivered intent keeps its effect from being decided again: kept longer than any run stays open."""


def delete_expired() -> Progress:
    """One bounded pass; what is left goes at the next."""
    settings = conf()
    days = settings.fire_retention_days
    return Progress(
        {
            "fires": _delete(sql.DELETE_FIRES, days, state=FireState.DONE.value),
            "failed_fires": _delete(sql.DELETE_FIRES, FAILED_FACTOR * days, state=FireState.FAILED.value),
            "samples": _delete(sql.DELETE_SAMPLES, settings.sample_retention_days),
            "places": _delete(sql.DELETE_SEEN, PLACE_DAYS),
            "intents": _delete(sql.DELETE_INTENTS, INTENT_DAYS),
        }
    )


def _delete(statement: str, days: float, **parameters: str) -> int:
    total = 0
    for _ in range(MOST_BATCHES):
        deleted = execute(statement, {"age": days * DAY_SECONDS, "limit": BATCH, **parameters})
        total += deleted
        if deleted < BATCH:
            break
    return total
