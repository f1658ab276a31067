"""A runner's token is replaced while it works: for a while both open, until the new one was used (rule Q2)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NoReturn

from django.db import transaction

from controlplane.core import tokens
from controlplane.core.audit import Actor, record
from controlplane.core.conf import conf
from controlplane.core.errors import Conflict, InvalidInput, NotFound
from controlplane.core.sql import one
from runners import sql
from runners.models import Runner

MAX_OVERLAP_SECONDS = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class Rotated:
    """The new token, shown here and nowhere else, and until when the one before it opens at most."""

    runner: int
    name: str
    token: str
    old_until: datetime


def rotate_token(
    runner: int, *, actor: Actor, reason: str = "", used: str | None = None, overlap_seconds: float | None = None
) -> Rotated:
    """Give the runner a new token. `used`: the token by which it asks itself.

    Asked again with the same token, because the answer was lost, it makes another new one: the one that never arrived
    opens nothing then, and the asking one goes on opening.

    Raises:
        NotFound: no such runner.
        Conflict: it is revoked, or the token it asked with was replaced meanwhile.
        InvalidInput: an overlap out of range.
    """
    overlap = conf().token_overlap_seconds if overlap_seconds is None else overlap_seconds
    if not 0 <= overlap <= MAX_OVERLAP_SECONDS:
        raise InvalidInput(f"The old token may open for 0 to {MAX_OVERLAP_SECONDS:g} s more, not {overlap:g}.")
    secret = tokens.new_token(tokens.RUNNER)
    parameters = {
        "runner": runner,
        "used": None if used is None else tokens.token_hash(used),
        "overlap": overlap,
        "hash": tokens.token_hash(secret),
        "shown": tokens.shown_part(secret),
    }
    with transaction.atomic():
        row = one(sql.ROTATE, parameters)
        if row is None:
            _refuse(runner)
        after = {"token": row["shown"], "old_until": row["old_until"].isoformat()}
        record("rotate", "runner", runner, actor=actor, reason=reason, after=after)
    return Rotated(row["id"], row["name"], secret, row["old_until"])


def _refuse(runner: int) -> NoReturn:
    found = Runner.objects.filter(pk=runner).first()
    if found is None:
        raise NotFound(f"There is no runner {runner}.")
    if found.revoked_at is not None:
        raise Conflict(f"Runner {runner} is revoked.", hint="Enrol the machine anew.", code="runner_revoked")
    raise Conflict("The token was replaced by somebody else meanwhile.", hint="Enrol the machine anew.")
