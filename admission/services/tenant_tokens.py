"""A tenant's API tokens, as their tenant and operators see them. Issue and revoke: `tenants`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import DEFAULT_DB_ALIAS
from django.db.models import BooleanField, Case, QuerySet, Value, When
from django.db.models.functions import Now

from admission.models import ApiToken, Tenant
from admission.sql import callers as sql
from controlplane.core.clock import database_now
from controlplane.core.errors import InvalidInput, NotFound
from controlplane.core.sql import execute, one
from controlplane.core.tokens import token_hash

MAX_LIFETIME_SECONDS = 3660 * 86_400.0
USED_RESOLUTION_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class TokenUse:
    """A tenant that shows a living token."""

    tenant: Tenant
    shown: str


def find_tenant(token: str) -> TokenUse | None:
    """Whose token this is; None for an unknown, revoked or expired one. Notes the use, at most once a minute.

    Every call of a tenant begins here, so it is a named statement: the object mapper takes longer to write the same
    one than the server to answer it.
    """
    resolution = {"resolution": USED_RESOLUTION_SECONDS}
    row = one(sql.FIND_TENANT, {"hash": token_hash(token)} | resolution)
    if row is None:
        return None
    if row["stale"]:
        execute(sql.NOTE_USE, {"used": row["used"]} | resolution)
    columns = sql.TENANT_COLUMNS
    return TokenUse(Tenant.from_db(DEFAULT_DB_ALIAS, columns, [row[name] for name in columns]), row["shown"])


def list_tokens(tenant: Tenant) -> QuerySet[ApiToken]:
    """All of them, dead ones too; expiry judged by the database's clock."""
    expired = Case(When(expires_at__lt=Now(), then=Value(True)), default=Value(False), output_field=BooleanField())
    return ApiToken.objects.select_related("tenant").filter(tenant=tenant).annotate(expired=expired)


def get_token(tenant: Tenant, token: int) -> ApiToken:
    """Raises NotFound, for another tenant's too."""
    found = list_tokens(tenant).filter(pk=token).first()
    if found is None:
        raise NotFound(f"There is no token {token}.")
    return found


def status_of(token: Any) -> str:
    """valid, expired or revoked."""
    if token.revoked_at is not None:
        return "revoked"
    return "expired" if getattr(token, "expired", False) else "valid"


def described(token: ApiToken) -> dict[str, Any]:
    """For lists; a secret is nowhere in it."""
    return {
        "id": token.pk,
        "shown": token.shown,
        "name": token.name,
        "status": status_of(token),
        "expires_at": token.expires_at.isoformat() if token.expires_at else None,
        "last_used_at": token.last_used_at.isoformat() if token.last_used_at else None,
    }


def expiry(seconds: float | None) -> datetime | None:
    """When a token that lives so long expires. Raises InvalidInput."""
    if seconds is None:
        return None
    if not 0 < seconds <= MAX_LIFETIME_SECONDS:
        raise InvalidInput(f"A token lives above 0 and at most {MAX_LIFETIME_SECONDS:g} s, not {seconds:g}.")
    return database_now() + timedelta(seconds=seconds)
