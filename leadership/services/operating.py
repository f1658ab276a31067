"""What operators may do: ask the leader to step down, run a loop now."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from controlplane.core.audit import Actor, record
from controlplane.core.errors import Conflict, InvalidInput
from controlplane.core.loops import Gate
from controlplane.core.sql import one
from leadership import sql
from leadership.election import LOOPS
from leadership.queue import send
from leadership.registry import get_loop


@dataclass(frozen=True, slots=True)
class StepDown:
    """The term that was asked to end."""

    role: str
    term: int
    holder_name: str


def step_down(role: str = LOOPS, *, actor: Actor, reason: str) -> StepDown:
    """Ask the leader to give its lease back. It does so at its next look; one that is stuck is replaced by expiry.

    The row is not freed here: a successor would then lead while the holder, who has not read it yet, still believes.

    Raises:
        Conflict: nobody leads, or this term was asked already.
        InvalidInput: no reason.
    """
    _require(reason)
    with transaction.atomic():
        asked = one(sql.ASK_STEP_DOWN, {"role": role, "by": actor.name, "reason": reason})
        if asked is None:
            raise Conflict(
                f"Nobody leads {role!r} now, or its leader was asked to step down already.", code="no_leader"
            )
        holder = asked["holder_name"]
        record(
            "step_down", "lease", role, actor=actor, reason=reason, before={"term": asked["term"], "holder": holder}
        )
    return StepDown(role, asked["term"], holder)


def run_now(loop: str, *, actor: Actor, reason: str) -> datetime:
    """Send one extra fire of a gated loop, under the term in force; returns its time.

    Raises:
        NotFound: no such loop.
        Conflict: it is not gated, nobody leads, or a fire of it is waiting or running.
        InvalidInput: no reason.
    """
    _require(reason)
    if get_loop(loop).gate is not Gate.LEADER:
        raise Conflict(f"Loop {loop!r} runs in each process by itself and cannot be sent to the qcluster.")
    with transaction.atomic():
        lease = one(sql.READ_LEASE, {"role": LOOPS})
        if lease is None or lease["free"]:
            raise Conflict("Nobody leads now, so nothing can be sent.", hint="Start a replica.", code="no_leader")
        fire = one(sql.ENQUEUE_NOW, {"loop": loop, "term": lease["term"], "by": actor.name})
        if fire is None:
            raise Conflict(f"Loop {loop!r} is waiting or running already; it never overlaps itself.", code="loop_busy")
        record("run_now", "loop", loop, actor=actor, reason=reason, after={"fire_at": fire["fire_at"].isoformat()})
        send(loop, fire["fire_at"], lease["term"])
    fire_at: datetime = fire["fire_at"]
    return fire_at


def _require(reason: str) -> None:
    if not reason.strip():
        raise InvalidInput("Say why: the reason goes into the audit log.")
