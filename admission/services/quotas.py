"""A tenant's quota: set, change, remove (rules A14, A15). Limits of concurrency keys and harnesses: `limits`."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import transaction

from admission.models import Tenant
from admission.spec import MAX_INTEGER
from admission.sql import quotas as sql
from admission.states import Scope
from controlplane.core.audit import Actor, record
from controlplane.core.conf import conf
from controlplane.core.errors import Conflict, InvalidInput, NotFound
from controlplane.core.sql import execute, one, rows
from controlplane.core.wakeups import announce


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """What a change of quota meets: nothing is killed; `over` drains by itself."""

    before: int | None
    after: int | None
    in_flight: int

    @property
    def over(self) -> int:
        """By how much what is in use exceeds the new limit."""
        return max(self.in_flight - self.after, 0) if self.after is not None else 0

    def sentence(self) -> str:
        """What an operator reads before and after the change."""
        if self.after is None:
            return f"{self.in_flight} in use, no quota any more."
        if self.over:
            return f"{self.in_flight} in use, new limit {self.after}: {self.over} over, nothing is killed."
        return f"{self.in_flight} in use, new limit {self.after}."


def parse_limit(value: object, what: str = "quota") -> int:
    """A whole number in the column's range; anything else is refused with what would be right."""
    text = str(value).strip() if isinstance(value, str) else value
    if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= len(str(MAX_INTEGER)):
        text = int(text)
    if isinstance(text, bool) or not isinstance(text, int) or not 0 <= text <= MAX_INTEGER:
        raise InvalidInput(f"The {what} must be a whole number from 0 to {MAX_INTEGER}, not {value!r}.")
    return text


def set_quota(
    tenant: Tenant, limit: object, *, actor: Actor, reason: str = "", expected: tuple[int | None] | None = None
) -> QuotaChange:
    """Set the first quota, or change the standing one.

    `expected`: the limit that the caller saw, in a tuple; another one standing is a Conflict.
    A first quota waits for admissions under way and holds new ones off until every run in flight has its permit.
    """
    new = parse_limit(limit)
    with transaction.atomic():
        stands = _lock(tenant)["has_quota"]
        before = _lock_counter(tenant)["limit"] if stands else None
        _compare(tenant, expected, before)
        in_flight = _change_limit(tenant, new) if stands else _first_quota(tenant, new)
        change = QuotaChange(before, new, in_flight)
        _record(tenant, change, actor, reason)
    return change


def remove_quota(
    tenant: Tenant, *, actor: Actor, reason: str = "", expected: tuple[int | None] | None = None
) -> QuotaChange | None:
    """Delete the permits of its runs and the limit; touch no run. None: there was no quota."""
    with transaction.atomic():
        if not _lock(tenant)["has_quota"]:
            _compare(tenant, expected, None)
            return None
        one(sql.LOCK_TENANT, {"tenant_id": tenant.pk})
        rows(sql.LOCK_OPEN_RUNS, {"tenant_id": tenant.pk})
        execute(sql.DELETE_QUOTA_PERMITS, {"tenant_id": tenant.pk})
        counter = _lock_counter(tenant)
        _compare(tenant, expected, counter["limit"])
        recounted = one(sql.RECOUNT, {"counter": counter["id"], "limit": None})
        Tenant.objects.filter(pk=tenant.pk).update(has_quota=False)
        change = QuotaChange(counter["limit"], None, recounted["in_flight"] if recounted else 0)
        _record(tenant, change, actor, reason)
    return change


def preview_quota(tenant: Tenant, limit: object) -> QuotaChange:
    """What `set_quota` would meet now; changes nothing."""
    new = parse_limit(limit)
    counter = one(sql.READ_TENANT_USE, {"tenant_id": tenant.pk})
    if counter is None:
        raise NotFound(f"There is no tenant {tenant.slug!r}.")
    before = counter["limit"] if counter["has_quota"] else None
    return QuotaChange(before, new, counter["in_flight"])


def _lock(tenant: Tenant) -> dict[str, object]:
    row = one(sql.LOCK_QUOTA, {"tenant_id": tenant.pk})
    if row is None:
        raise NotFound(f"There is no tenant {tenant.slug!r}.")
    return row


def _lock_counter(tenant: Tenant) -> dict[str, int]:
    row = one(sql.LOCK_TENANT_COUNTER, {"tenant_id": tenant.pk})
    if row is None:
        raise NotFound(f"Tenant {tenant.slug!r} has no counter.", hint="Run: manage.py doctor")
    return row


def _first_quota(tenant: Tenant, limit: int) -> int:
    one(sql.LOCK_TENANT, {"tenant_id": tenant.pk})
    rows(sql.LOCK_OPEN_RUNS, {"tenant_id": tenant.pk})
    lapse = conf().permit_lapse_seconds
    execute(sql.BACK_FILL_PERMITS, {"tenant_id": tenant.pk, "lapse_seconds": lapse})
    counter = _lock_counter(tenant)
    recounted = one(sql.RECOUNT, {"counter": counter["id"], "limit": limit})
    Tenant.objects.filter(pk=tenant.pk).update(has_quota=True)
    return int(recounted["in_flight"]) if recounted else 0


def _change_limit(tenant: Tenant, limit: int) -> int:
    row = one(sql.SET_LIMIT, {"scope": Scope.TENANT.value, "key": str(tenant.pk), "limit": limit})
    if row is None:
        raise NotFound(f"Tenant {tenant.slug!r} has no counter.", hint="Run: manage.py doctor")
    return int(row["in_flight"])


def _compare(tenant: Tenant, expected: tuple[int | None] | None, found: int | None) -> None:
    if expected is not None and expected[0] != found:
        raise Conflict(
            f"The quota of {tenant.slug!r} is {found}, not {expected[0]} as you saw it.",
            hint="Look again, then decide.",
            code="quota_changed",
        )


def _record(tenant: Tenant, change: QuotaChange, actor: Actor, reason: str) -> None:
    record(
        "set_quota" if change.after is not None else "remove_quota",
        "tenant",
        tenant.slug,
        actor=actor,
        reason=reason,
        before={"quota": change.before},
        after={"quota": change.after, "in_flight": change.in_flight},
    )
    announce()
