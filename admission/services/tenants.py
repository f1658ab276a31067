"""Tenants: create, change, pause, resume; and their API tokens. Deleting: `deleting`."""

from __future__ import annotations

import re
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models.functions import Now

from admission.models import ApiToken, Counter, Tenant
from admission.states import Scope
from controlplane.core import tokens
from controlplane.core.audit import Actor, record
from controlplane.core.clock import check_to_come
from controlplane.core.errors import Conflict, InvalidInput, NotFound
from controlplane.core.wakeups import announce

SLUG = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,58}[a-z0-9])?")
MAX_WEIGHT = Decimal("99999.999")


def create_tenant(
    slug: str, *, actor: Actor, name: str = "", weight: object = 1, queue_depth: int | None = None, reason: str = ""
) -> Tenant:
    """A tenant without a quota, with its place in the fair order."""
    if not SLUG.fullmatch(slug):
        raise InvalidInput(
            f"The slug {slug!r} must be 1 to 60 lower-case letters, digits and hyphens, "
            "a hyphen neither first nor last."
        )
    share = parse_weight(weight)
    try:
        with transaction.atomic():
            tenant = Tenant.objects.create(slug=slug, name=name, weight=share, queue_depth=queue_depth)
            Counter.objects.create(scope=Scope.TENANT, key=str(tenant.pk), tenant=tenant)
            record("create", "tenant", slug, actor=actor, reason=reason, after={"weight": str(share)})
    except IntegrityError as error:
        raise Conflict(f"There is a tenant {slug!r} already.", code="tenant_exists") from error
    return tenant


def parse_weight(value: object) -> Decimal:
    """A tenant's share: a positive number, fractions allowed."""
    try:
        weight = Decimal(str(value))
    except InvalidOperation as error:
        raise InvalidInput(f"The weight must be a number above 0, not {value!r}.") from error
    if not weight.is_finite() or not Decimal("0.001") <= weight <= MAX_WEIGHT:
        raise InvalidInput(f"The weight must be from 0.001 to {MAX_WEIGHT}, not {value!r}.")
    return weight


def get_tenant(slug: str) -> Tenant:
    """Raises NotFound."""
    try:
        return Tenant.objects.get(slug=slug)
    except Tenant.DoesNotExist as error:
        raise NotFound(f"There is no tenant {slug!r}.") from error


def change_tenant(tenant: Tenant, *, actor: Actor, reason: str = "", **changes: Any) -> None:
    """Change name, weight or queue depth; never a counter."""
    allowed = {"name", "weight", "queue_depth"}
    if unknown := set(changes) - allowed:
        raise InvalidInput(f"Cannot change {', '.join(sorted(unknown))}; only {', '.join(sorted(allowed))}.")
    if "weight" in changes:
        changes["weight"] = parse_weight(changes["weight"])
    with transaction.atomic():
        current = Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)
        before = {name: str(getattr(current, name)) for name in changes}
        Tenant.objects.filter(pk=tenant.pk).update(**changes)
        after = {name: str(value) for name, value in changes.items()}
        record("change", "tenant", tenant.slug, actor=actor, reason=reason, before=before, after=after)


def pause_tenant(tenant: Tenant, *, actor: Actor, reason: str, resume_at: datetime | None = None) -> bool:
    """Stop admission, keep running work. False: it was paused already.

    Raises InvalidInput for a time that has passed, or is too late to be kept.
    """
    if resume_at is not None:
        check_to_come(resume_at, "The pause")
    with transaction.atomic():
        changed = Tenant.objects.filter(pk=tenant.pk, paused_at__isnull=True).update(
            paused_at=Now(), pause_note=reason, resume_at=resume_at
        )
        if not changed:
            return False
        Counter.objects.filter(scope=Scope.TENANT, key=str(tenant.pk)).update(paused=True)
        after = {"resume_at": resume_at.isoformat() if resume_at else None}
        record("pause", "tenant", tenant.slug, actor=actor, reason=reason, after=after)
    return True


def resume_tenant(tenant: Tenant, *, actor: Actor, reason: str = "", if_due: bool = False) -> bool:
    """Admit again. False: it was not paused, or (`if_due`) its pause has no end that has passed."""
    with transaction.atomic():
        paused = Tenant.objects.filter(pk=tenant.pk, paused_at__isnull=False)
        # Judged by the statement that acts: between a sweep's look and this, somebody may have paused it for longer.
        due = paused.filter(resume_at__lte=Now()) if if_due else paused
        changed = due.update(paused_at=None, pause_note="", resume_at=None)
        if not changed:
            return False
        Counter.objects.filter(scope=Scope.TENANT, key=str(tenant.pk)).update(paused=False)
        announce()
        record("resume", "tenant", tenant.slug, actor=actor, reason=reason)
    return True


def issue_token(
    tenant: Tenant, name: str, *, actor: Actor, reason: str = "", expires_at: datetime | None = None
) -> tuple[ApiToken, str]:
    """A new tenant token; the secret is returned here and nowhere else."""
    secret = tokens.new_token(tokens.TENANT)
    with transaction.atomic():
        token = ApiToken.objects.create(
            tenant=tenant,
            name=name,
            shown=tokens.shown_part(secret),
            hash=tokens.token_hash(secret),
            expires_at=expires_at,
        )
        after = {"token": token.shown, "name": name}
        record("issue_token", "tenant", tenant.slug, actor=actor, reason=reason, after=after)
    return token, secret


def revoke_token(token: ApiToken, *, actor: Actor, reason: str = "") -> bool:
    """Revoked from the next call on. False: it was already."""
    with transaction.atomic():
        changed = ApiToken.objects.filter(pk=token.pk, revoked_at__isnull=True).update(revoked_at=Now())
        if changed:
            subject = token.tenant.slug if token.tenant else str(token.user)
            record("revoke_token", "tenant", subject, actor=actor, reason=reason, after={"token": token.shown})
    return bool(changed)
