"""The leader's clockwork: decides what is due, and sends it to the qcluster under its term (L4, rule L7).

The gate is here, at the sending. Asked at the execution, most tasks would land on processes that do not lead, and do
nothing, silently.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from django.db import transaction

from controlplane.core.conf import conf
from controlplane.core.sql import Row, rows
from leadership import registry, sql
from leadership.queue import send

log = logging.getLogger(__name__)


class Ticker:
    """Call `tick` every `ticker_seconds` on every replica; it does nothing unless `term` says that this one leads."""

    def __init__(self, term: Callable[[], int | None]) -> None:
        self._term = term
        self._took_over = 0

    def tick(self) -> None:
        """Send what is due; send again what a lost leader or a purged queue left; fail what fell silent."""
        if (term := self._term()) is None:
            return
        if term != self._took_over:
            _send_in_one(sql.TAKE_OVER, {"term": term}, term)
            self._took_over = term
        for silent in rows(sql.FAIL_SILENT, {"silent": conf().fire_silent_seconds}):
            log.error("loop.silent", extra={k: str(v) for k, v in silent.items()})
        _send_in_one(sql.RESEND, {"term": term, "untaken": conf().fire_untaken_seconds}, term)
        due = registry.gated()
        parameters = {"term": term, "loops": [p.name for p in due], "periods": [p.seconds() for p in due]}
        _send_in_one(sql.ENQUEUE, parameters, term)


def _send_in_one(statement: str, parameters: dict[str, object], term: int) -> Sequence[Row]:
    """The fire and its task in one transaction: neither exists without the other."""
    with transaction.atomic():
        fires = rows(statement, parameters)
        for fire in fires:
            send(fire["loop"], fire["fire_at"], term)
    return fires
