"""A machine's own wish about itself: a pause, and taking back what it wished (rule Q11).

What an operator set stays: a machine takes back only its own pause or drain, told by who is in the audit log.
"""

from __future__ import annotations

from typing import Final

from controlplane.core.audit import Actor
from controlplane.core.errors import Conflict
from controlplane.core.models import AuditEntry
from runners.services.fleet import RunnerIdentity, pause_runner, resume_runner

VERBS: Final = ("pause", "resume")


def wish(runner: RunnerIdentity, verb: str, *, reason: str, request_id: str = "") -> bool:
    """Do it; False when it was so already.

    Raises:
        Conflict: a resume of what an operator paused or drained.
    """
    actor = Actor(f"runner {runner.name}", request_id=request_id)
    if verb == "pause":
        return pause_runner(runner.id, actor=actor, reason=reason)
    last = (
        AuditEntry.objects.filter(subject_type="runner", subject=str(runner.id), verb__in=("pause", "drain"))
        .order_by("-id")
        .first()
    )
    if last is not None and last.actor != actor.name and (runner.paused or runner.draining):
        raise Conflict(
            f"{last.actor} asked for the {last.verb}, with the reason: {last.reason or 'none given'}.",
            hint="An operator resumes it (POST /runners/{id}/resume, or the admin).",
            code="not_your_pause",
        )
    return resume_runner(runner.id, actor=actor, reason=reason)
