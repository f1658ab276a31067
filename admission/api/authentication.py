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
from admission.services.tenant_tokens import USED_RESOLUTION_SECONDS, find_tenant
from controlplane.api.bearer import bearer
from controlplane.core import tokens
from controlplane.core.logs import bind

USED_RESOLUTION = timedelta(seconds=USED_RESOLUTION_SECONDS)


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

    def authenticate(self, request: Request) -> tuple[Any, ApiToken | None] | None:
        """Who calls; None when nobody says so."""
        token = bearer(request)
        if token is None:
            return None
        match token.partition("_")[0]:
            case tokens.TENANT:
                return _tenant(token), None
            case tokens.OPERATOR:
                return _operator(token)
        raise AuthenticationFailed("This path takes a tenant's or an operator's token.", code="wrong_token")

    def authenticate_header(self, request: Request) -> str:
        """What a 401 asks for."""
        return 'Bearer realm="wharfinger"'


def _dead() -> AuthenticationFailed:
    return AuthenticationFailed("The token is unknown, revoked or expired.", code="bad_token")


def _tenant(token: str) -> TenantPrincipal:
    found = find_tenant(token)
    if found is None:
        raise _dead()
    bind(tenant=found.tenant.slug)
    return TenantPrincipal(found.tenant, found.shown)


def _operator(token: str) -> tuple[Any, ApiToken]:
    unused = Q(last_used_at__isnull=True) | Q(last_used_at__lt=Now() - USED_RESOLUTION)
    found = (
        ApiToken.objects.select_related("user")
        .filter(Q(expires_at__isnull=True) | Q(expires_at__gt=Now()), hash=tokens.token_hash(token))
        .filter(revoked_at__isnull=True, user__is_active=True)
        .annotate(stale=Case(When(unused, then=Value(True)), default=Value(False), output_field=BooleanField()))
        .first()
    )
    if found is None:
        raise _dead()
    if found.stale:
        # At most once a minute: a busy operator must not write a row at each call.
        ApiToken.objects.filter(unused, pk=found.pk).update(last_used_at=Now())
    return found.user, found
