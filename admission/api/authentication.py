"""Bearer tokens of tenants and operators: one indexed look-up a request, judged by the database's clock.

Runner tokens are another class (`runners.api.authentication`) on other paths: neither opens the other's.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db.models import BooleanField, Case, Q, Value, When
from django.db.models.functions import Now
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from admission.models import ApiToken, Tenant
from controlplane.api.bearer import bearer
from controlplane.core import tokens
from controlplane.core.logs import bind

USED_RESOLUTION = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class TenantPrincipal:
    """A tenant as the caller: sees and touches what is its own."""

    tenant: Tenant
    token: str
    is_authenticated: bool = True
    is_active: bool = True

    def has_perm(self, permission: str) -> bool:
        """A tenant has no operator's permission."""
        return False


class TokenAuthentication(BaseAuthentication):
    """`Bearer wht_…` is a tenant, `Bearer who_…` an operator with the permissions of its user."""

    def authenticate(self, request: Request) -> tuple[Any, ApiToken] | None:
        """Who calls; None when nobody says so."""
        token = bearer(request)
        if token is None:
            return None
        if token.partition("_")[0] not in (tokens.TENANT, tokens.OPERATOR):
            raise AuthenticationFailed("This path takes a tenant's or an operator's token.", code="wrong_token")
        found = _find(token)
        if found is None or (found.user is not None and not found.user.is_active):
            raise AuthenticationFailed("The token is unknown, revoked or expired.", code="bad_token")
        if getattr(found, "stale", False):
            _note_use(found)
        if found.tenant is not None:
            bind(tenant=found.tenant.slug)
            return TenantPrincipal(found.tenant, found.shown), found
        return found.user, found

    def authenticate_header(self, request: Request) -> str:
        """What a 401 asks for."""
        return 'Bearer realm="wharfinger"'


def _find(token: str) -> ApiToken | None:
    unused = Q(last_used_at__isnull=True) | Q(last_used_at__lt=Now() - USED_RESOLUTION)
    return (
        ApiToken.objects.select_related("tenant", "user")
        .filter(Q(expires_at__isnull=True) | Q(expires_at__gt=Now()), hash=tokens.token_hash(token))
        .filter(revoked_at__isnull=True)
        .annotate(stale=Case(When(unused, then=Value(True)), default=Value(False), output_field=BooleanField()))
        .first()
    )


def _note_use(token: ApiToken) -> None:
    """At most once a minute: a busy tenant must not write a row at each call."""
    unused = Q(last_used_at__isnull=True) | Q(last_used_at__lt=Now() - USED_RESOLUTION)
    ApiToken.objects.filter(unused, pk=token.pk).update(last_used_at=Now())
