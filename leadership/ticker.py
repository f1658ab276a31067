"""The leader's clockwork: decides what is due, and sends it to the qcluster under its term (L4, rule L7).

The gate is here, at the sending. Asked at the execution, most tasks would land on processes that do not lead, and do
nothing, silently.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from django.db import transaction

from controlplane.core.conf import conf
from controlplane.core.sql import Row, one, rows
from leadership import registry, sql
from leadership.queue import send

log = logging.getLogger(__name__)


class Ticker:
    """Call `tick` every `ticker_seconds` on every replica; it does nothing unless `term` says that this one leads."""

    def __init__(self, term: Callable[[], int | None]) -> None:
        self._term = term

    def tick(self) -> None:
        """Send what is due; send again what a lost leader or a purged queue left; fail what fell silent."""
        if (term := self._term()) is None:
            return
        settings = conf()
        # One transaction: a fire and its task exist together or not at all. Bounded like a sweep's: a leader stopped
        # inside holds keys that its successor's insert waits for.
        with transaction.atomic():
            one(sql.BOUND_TRANSACTION, {"ms": str(int(settings.sweep_transaction_seconds * 1000))})
            for silent in rows(sql.FAIL_SILENT, {"silent": settings.fire_silent_seconds}):
                log.error("loop.silent", extra={k: str(v) for k, v in silent.items()})
            # At every tick, not once a term: what an old leader inserts late must not block its loop.
            _send(rows(sql.TAKE_OVER, {"term": term}), term)
            _send(rows(sql.RESEND, {"term": term, "untaken": settings.fire_untaken_seconds}), term)
            due = registry.gated()
            parameters = {"term": term, "loops": [p.name for p in due], "periods": [p.seconds() for p in due]}
            _send(rows(sql.ENQUEUE, parameters), term)


def _send(fires: Sequence[Row], term: int) -> None:
    for fire in fires:
        send(fire["loop"], fire["fire_at"], term)
