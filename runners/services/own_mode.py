"""A machine's own wish about itself: a pause, and taking back what it wished (rule Q11).

What an operator set stays: a machine takes back only its own pause and its own drain, each judged by its own mark on
the runner's row.
"""

from __future__ import annotations

from typing import Final

from controlplane.core.audit import Actor
from controlplane.core.errors import Conflict
from controlplane.core.models import AuditEntry
from runners.services.fleet import RunnerIdentity, get_runner, pause_runner, resume_own

VERBS: Final = ("pause", "resume")


def wish(runner: RunnerIdentity, verb: str, *, reason: str, request_id: str = "") -> bool:
    """Do it; False when it was so already.

    Raises:
        Conflict: a resume of what an operator paused or drained.
    """
    actor = Actor(f"runner {runner.name}", request_id=request_id)
    if verb == "pause":
        return pause_runner(runner.id, actor=actor, reason=reason, own=True)
    resumed = resume_own(runner.id, actor=actor, reason=reason, paused=True)
    if not resumed:
        _refuse_others(runner.id, actor)
    return resumed


def _refuse_others(runner: int, actor: Actor) -> None:
    row = get_runner(runner)
    verb = "pause" if row.paused_at else "drain" if row.draining_at else ""
    if not verb:
        return
    entries = AuditEntry.objects.filter(subject_type="runner", subject=str(runner), verb=verb)
    last = entries.exclude(actor=actor.name).order_by("-id").first()
    who = f"{last.actor} asked for the {verb}, with the reason: {last.reason or 'none given'}." if last else ""
    raise Conflict(
        who or f"The {verb} is not this machine's own.",
        hint="An operator resumes it (POST /runners/{id}/resume, or the admin).",
        code="not_your_pause",
    )
