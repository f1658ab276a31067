"""Limits below the tenant: concurrency keys (rule P18) and harnesses (rule A20). Each is a counter row of its own.

The limit lives on that row and nowhere else, so whoever runs a service pool writes the pool's capacity here; admission
decides by it in the same statement that counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.db import transaction
from django.db.models import QuerySet

from admission.models import Counter, Tenant
from admission.services.quotas import parse_limit
from admission.sql import quotas as sql
from admission.sql.submitting import ENSURE_COUNTERS
from admission.states import Scope
from controlplane.core.audit import Actor, record
from controlplane.core.errors import InvalidInput, NotFound
from controlplane.core.sql import execute, one
from controlplane.core.wakeups import announce

MAX_NAME = 200
BELOW_TENANT = (Scope.KEY, Scope.HARNESS)


@dataclass(frozen=True, slots=True)
class LimitChange:
    """A changed limit. `limit` null: counted, not limited. What is in flight beyond it drains by itself."""

    scope: Scope
    key: str
    before: int | None
    limit: int | None
    in_flight: int

    def sentence(self) -> str:
        """What an operator reads after the change."""
        now = "no limit" if self.limit is None else f"limit {self.limit}"
        over = max(self.in_flight - self.limit, 0) if self.limit is not None else 0
        more = f": {over} over, nothing is killed" if over else ""
        return f"{self.in_flight} in use, {now}{more}."


def set_key_limit(tenant: Tenant, key: str, limit: object, *, actor: Actor, reason: str = "") -> LimitChange:
    """How many runs of a tenant that name this concurrency key are in flight at once; also before the first one is."""
    counter = f"{tenant.pk}:{_name(key, 'concurrency key')}"
    return _set(Scope.KEY, counter, parse_limit(limit, "limit"), tenant, f"{tenant.slug}:{key}", actor, reason)


def set_harness_capacity(name: str, capacity: object, *, actor: Actor, reason: str = "") -> LimitChange:
    """How many runs use this harness at once, over all tenants. None: not bounded here.

    A full one blocks only its own runs. Lowering it kills nothing; raising it lets waiting runs in at the next look.
    """
    limit = None if capacity is None else parse_limit(capacity, "capacity")
    return _set(Scope.HARNESS, _name(name, "harness"), limit, None, name, actor, reason)


def change_limit(counter: Counter, limit: object, *, actor: Actor, reason: str = "") -> LimitChange:
    """The same for a row that is known; refused for limits that have verbs of their own."""
    if counter.scope == Scope.KEY and counter.tenant is not None:
        return set_key_limit(counter.tenant, counter.key.partition(":")[2], limit, actor=actor, reason=reason)
    if counter.scope == Scope.HARNESS:
        return set_harness_capacity(counter.key, limit, actor=actor, reason=reason)
    raise InvalidInput(f"The limit of a {counter.scope} is not set here.", hint="A tenant's is its quota.")


def list_limits(tenant: Tenant | None) -> QuerySet[Counter]:
    """Of one tenant: its concurrency keys. Of all: every key, and the harnesses."""
    found = Counter.objects.filter(scope__in=BELOW_TENANT).select_related("tenant")
    return found if tenant is None else found.filter(tenant=tenant)


def _name(text: str, what: str) -> str:
    if not text or text != text.strip() or len(text) > MAX_NAME or not text.isprintable():
        raise InvalidInput(f"The name of a {what} has 1 to {MAX_NAME} printable characters, no space at its ends.")
    return text


def _set(  # noqa: PLR0917 - the row, its new value, and who says so
    scope: Scope, key: str, limit: int | None, tenant: Tenant | None, subject: str, actor: Actor, reason: str
) -> LimitChange:
    named = {"scope": scope.value, "key": key}
    with transaction.atomic():
        # A counter made here has nothing in flight: runs that name it make it when they are submitted.
        made = {"scopes": [scope.value], "keys": [key], "tenants": [tenant.pk if tenant else None], "limits": [limit]}
        execute(ENSURE_COUNTERS, made)
        before = one(sql.LOCK_LIMIT, named)
        changed = one(sql.SET_LIMIT, {**named, "limit": limit})
        if before is None or changed is None:
            raise NotFound(f"The {scope.label} {subject!r} was removed meanwhile.")
        change = LimitChange(scope, key, before["limit"], limit, changed["in_flight"])
        after = {"limit": limit, "in_flight": change.in_flight}
        record(
            "set_limit", scope.value, subject, actor=actor, reason=reason, before={"limit": change.before}, after=after
        )
        announce()
    return change
