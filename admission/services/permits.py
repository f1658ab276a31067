"""Permits by identity: claim, renew, release (rules A4-A8, A23). Each is one transaction and may be repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from django.db import DatabaseError, transaction

from admission.models import Permit
from admission.services.reaping import reap_limit
from admission.spec import MAX_INTEGER
from admission.sql import permits as sql
from admission.states import Scope
from controlplane.core.audit import Actor, record
from controlplane.core.conf import conf
from controlplane.core.errors import Conflict, InvalidInput, NotFound
from controlplane.core.sql import one, rows
from controlplane.core.wakeups import announce

REFUSED_SQLSTATE = "WH001"
OUTSIDE_PREFIX = "ext:"
MAX_HOLDER = 300
MIN_LAPSE_SECONDS = 1
MAX_LAPSE_SECONDS = 7 * 86_400
_TRIES = 3


class ClaimOutcome(StrEnum):
    """Granted now, held already by the same id, or refused by the limit. Conflict is an exception."""

    GRANTED = "granted"
    HELD = "held"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Claim:
    """The answer to a claim."""

    outcome: ClaimOutcome
    lapse_seconds: float


def claim_permit(
    holder: str,
    *,
    tenant_id: int,
    weight: int = 1,
    scope: Scope = Scope.TENANT,
    key: str | None = None,
    lapse_seconds: float | None = None,
    holder_name: str = "",
) -> Claim:
    """Claim `weight` slots of one limit under the caller's own id. The same id again is the same right.

    Raises:
        Conflict: this id exists with another tenant, key or weight (rule A7).
        NotFound: no such tenant.
        InvalidInput: the id is none of an outside system's, the weight no whole number in range, or the lease too
            short or too long.
    """
    _check_holder(holder)
    _check_weight(weight)
    lapse = conf().permit_lapse_seconds if lapse_seconds is None else _check_lapse(lapse_seconds)
    parameters = {
        "holder": holder,
        "tenant_id": tenant_id,
        "scope": scope.value,
        "key": str(tenant_id) if key is None else key,
        "weight": weight,
        "lapse_seconds": lapse,
        "driver_name": holder_name,
    }
    claim = _claim_repeating(parameters, lapse)
    if claim.outcome is ClaimOutcome.REFUSED and reap_limit(scope, str(parameters["key"])):
        # The refusal ended its transaction, the reap is another, and the claim is tried once more (rule A12).
        claim = _claim_repeating(parameters, lapse)
    return claim


def _claim_repeating(parameters: dict[str, object], lapse: float) -> Claim:
    """What stood in the way may be released while we look at it; then the claim is made again."""
    outcome = ClaimOutcome.REFUSED
    for _ in range(_TRIES):
        outcome = _try_claim(parameters)
        if outcome is ClaimOutcome.GRANTED:
            return Claim(outcome, lapse)
        if outcome is ClaimOutcome.REFUSED:
            room = one(sql.READ_ROOM, parameters)
            if room is None or not room["room"]:
                return Claim(outcome, lapse)
        elif (held := _held(parameters)) is not None:
            return held
    if outcome is ClaimOutcome.REFUSED:
        return Claim(outcome, lapse)
    raise Conflict(f"Permit {parameters['holder']!r} is being claimed and released at once.", hint="Repeat the claim.")


def _try_claim(parameters: dict[str, object]) -> ClaimOutcome:
    """Granted, refused, or held by whom the caller must find out."""
    try:
        answer = one(sql.CLAIM_PERMIT, parameters)
    except DatabaseError as error:
        if getattr(error.__cause__, "sqlstate", "") == REFUSED_SQLSTATE:
            return ClaimOutcome.REFUSED
        raise
    if answer and answer["claimed"]:
        return ClaimOutcome.GRANTED
    if not answer or not answer["tenant_known"]:
        raise NotFound(f"There is no tenant {parameters['tenant_id']} that can hold permits.")
    return ClaimOutcome.HELD


def _check_holder(holder: str) -> None:
    # The ids of runs' permits, "run.attempt", are the engine's: one taken from outside would refuse that run for ever.
    if not holder.startswith(OUTSIDE_PREFIX) or holder == OUTSIDE_PREFIX or len(holder) > MAX_HOLDER:
        raise InvalidInput(f"A permit's id starts with {OUTSIDE_PREFIX!r} and has at most {MAX_HOLDER} characters.")
    if not holder.isprintable():
        raise InvalidInput("A permit's id has printable characters only.")


def _check_weight(weight: object) -> None:
    if isinstance(weight, bool) or not isinstance(weight, int) or not 1 <= weight <= MAX_INTEGER:
        raise InvalidInput(f"The weight must be a whole number from 1 to {MAX_INTEGER}, not {weight!r}.")


def _check_lapse(seconds: object) -> float:
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not MIN_LAPSE_SECONDS <= float(str(seconds)) <= MAX_LAPSE_SECONDS:
        raise InvalidInput(f"A lease is from {MIN_LAPSE_SECONDS} to {MAX_LAPSE_SECONDS} seconds, not {seconds!r}.")
    return float(str(seconds))


def _held(parameters: dict[str, object]) -> Claim | None:
    row = one(sql.READ_PERMIT, parameters)
    if row is None:
        return None
    if any(row[name] != parameters[name] for name in ("tenant_id", "key", "weight")):
        raise Conflict(
            f"Permit {parameters['holder']!r} exists with another tenant, key or weight.",
            hint="Use a new id, or release the permit first.",
            code="permit_conflict",
        )
    return Claim(ClaimOutcome.HELD, row["lapse_seconds"])


def release_permit(holder: str, *, tenant_id: int, scope: Scope = Scope.TENANT) -> bool:
    """Release by identity. True: released now; False: it was not held (a repeat, or it lapsed)."""
    parameters = {"holder": holder, "tenant_id": tenant_id, "scope": scope.value}
    released = rows(sql.RELEASE_PERMIT, parameters)
    if released and released[0]["wakes"]:
        announce()
    return bool(released)


def renew_permits(holders: Sequence[str], *, tenant_id: int, scope: Scope = Scope.TENANT) -> dict[str, float]:
    """Renew exactly these; returns the lease in seconds of each that is still held. A missing one is gone."""
    if not holders:
        return {}
    parameters = {"holders": list(holders), "tenant_id": tenant_id, "scope": scope.value}
    return {row["holder"]: row["lapse_seconds"] for row in rows(sql.RENEW_PERMITS, parameters)}


def force_release_permit(permit: Permit, *, actor: Actor, reason: str) -> bool:
    """An operator takes an outside system's permit; its holder is told at the next renewal. False: it was gone."""
    with transaction.atomic():
        released = release_permit(permit.holder, tenant_id=permit.tenant_id, scope=Scope(permit.scope))
        if released:
            before = {"weight": permit.weight}
            record("force_release", "permit", permit.holder, actor=actor, reason=reason, before=before)
    return released
