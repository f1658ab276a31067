"""Writing the audit log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from controlplane.core.models import AuditEntry


@dataclass(frozen=True, slots=True)
class Actor:
    """Who does something: a person, a token, or the system."""

    name: str
    user_id: int | None = None
    request_id: str = ""


SYSTEM = Actor("system")


def record(
    verb: str,
    subject_type: str,
    subject: object,
    *,
    actor: Actor,
    reason: str = "",
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> AuditEntry:
    """Append one entry. Call it inside the transaction of the change: both stand or neither does."""
    return AuditEntry.objects.create(
        verb=verb,
        subject_type=subject_type,
        subject=str(subject),
        actor=actor.name,
        user_id=actor.user_id,
        request_id=actor.request_id,
        reason=reason,
        before=before,
        after=after,
    )
