"""Writing the audit log."""

from __future__ import annotations

from collections.abc import Mapping
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


def record_each(
    verb: str, subject_type: str, after: Mapping[Any, dict[str, Any]], *, actor: Actor, reason: str = ""
) -> None:
    """Append one entry for each subject, in one statement; `after` says what each became."""
    AuditEntry.objects.bulk_create(
        AuditEntry(
            verb=verb,
            subject_type=subject_type,
            subject=str(subject),
            actor=actor.name,
            user_id=actor.user_id,
            request_id=actor.request_id,
            reason=reason,
            after=became,
        )
        for subject, became in after.items()
    )
