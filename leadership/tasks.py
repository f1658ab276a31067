"""The one entry point of the qcluster."""

from __future__ import annotations

from datetime import datetime

from leadership.execution import execute_fire


def run_fire(loop: str, fire_at: str, term: int) -> str:
    """Execute one fire under the term that sent it; says what became of it."""
    return execute_fire(loop, datetime.fromisoformat(fire_at), term).value
