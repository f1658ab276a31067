"""Fires as tasks of the qcluster."""

from __future__ import annotations

from datetime import datetime

from django_q.tasks import async_task

ENTRY = "leadership.tasks.run_fire"


def send(loop: str, fire_at: datetime, term: int) -> None:
    """Enqueue the execution of one fire, in the caller's transaction: the queue is a table of the same database."""
    # Successes are not kept twice: the fire's row is the record.
    async_task(
        ENTRY, loop, fire_at.isoformat(), term, task_name=f"{loop} {fire_at:%H:%M:%S}", group="loops", save=False
    )
