"""Effects outside the database: decided once, under the term, and done at least once afterwards (rule L6).

Deciding is `declare`, in the transaction of whoever decides. Delivering runs on every replica and needs no leader:
each intent is claimed by one statement. A deliverer that dies after the effect and before noting it repeats it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from django.db import transaction
from django.db.models.functions import Now

from controlplane.core.audit import Actor, record
from controlplane.core.errors import Conflict, NotFound
from controlplane.core.loops import Progress
from controlplane.core.sql import Row, execute, rows
from leadership import sql
from leadership.models import Intent

log = logging.getLogger(__name__)

BATCH = 20
MOST_TRIES = 12

Handler = Callable[[str, Mapping[str, Any]], None]
"""Does the effect of (key, payload). Raises if it could not."""

_handlers: dict[str, Handler] = {}


def register_handler(kind: str, handler: Handler) -> None:
    """Called from `AppConfig.ready` of the app that declares intents of this kind."""
    _handlers[kind] = handler


def declare(kind: str, effects: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Intend these effects (key → payload) in the caller's transaction; returns the keys that are new."""
    if not effects:
        return []
    intents = json.dumps([{"key": key, "payload": payload} for key, payload in effects.items()], default=str)
    return [row["key"] for row in rows(sql.DECLARE_INTENTS, {"kind": kind, "intents": intents})]


def deliver() -> Progress:
    """Claim what is due and do it. Not inside a transaction: the effect itself cannot be rolled back."""
    claimed = rows(sql.CLAIM_INTENTS, {"limit": BATCH})
    done = sum(_deliver_one(intent) for intent in claimed)
    return Progress({"delivered": done, "failed": len(claimed) - done}, more=len(claimed) == BATCH)


def _deliver_one(intent: Row) -> bool:
    error = ""
    try:
        _handlers[intent["kind"]](intent["key"], json.loads(intent["payload"]))
    except Exception as failure:
        # Recorded on the intent, which is tried again with a growing pause, and shown once it is given up.
        log.exception("intent.failed", extra={"kind": intent["kind"], "key": intent["key"], "tries": intent["tries"]})
        error = f"{type(failure).__name__}: {failure}"[:1000]
    execute(sql.CLOSE_INTENT, {"intent": intent["id"], "tries": intent["tries"], "error": error, "most": MOST_TRIES})
    return not error


def get_intent(intent: int) -> Intent:
    """Raises NotFound."""
    try:
        return Intent.objects.get(pk=intent)
    except Intent.DoesNotExist as error:
        raise NotFound(f"There is no intent {intent}.") from error


def retry_intent(intent: Intent, *, actor: Actor, reason: str) -> None:
    """Try an effect again that was given up. Raises Conflict if it was not."""
    with transaction.atomic():
        # Now: the time that its last try had set is hours away.
        if not Intent.objects.filter(pk=intent.pk, dead_at__isnull=False).update(dead_at=None, tries=0, next_at=Now()):
            raise Conflict(f"The effect {intent} was not given up.")
        record("retry", "intent", str(intent), actor=actor, reason=reason)
