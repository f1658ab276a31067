"""Who calls, and what that one may see: the questions that every view asks."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiParameter
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request

from admission.api.authentication import TenantPrincipal
from admission.models import Tenant
from admission.services.tenants import get_tenant
from controlplane.core.audit import Actor
from controlplane.core.errors import InvalidInput, NotFound

MAX_REASON = 1000
REASON = OpenApiParameter("reason", str, description="Why; for the audit log. An operator must say it.")


def tenant_of(request: Request) -> Tenant | None:
    """The calling tenant; None for an operator."""
    return request.user.tenant if isinstance(request.user, TenantPrincipal) else None


def actor_of(request: Request) -> Actor:
    """Who goes into the audit log."""
    request_id = request.META.get("wharfinger.request_id", "")
    if isinstance(request.user, TenantPrincipal):
        return Actor(f"{request.user.tenant.slug} ({request.user.token}…)", request_id=request_id)
    return Actor(request.user.get_username(), user_id=request.user.pk, request_id=request_id)


def require(request: Request, permission: str) -> None:
    """An operator with this permission, nobody else."""
    user: Any = request.user
    if not user.has_perm(permission):
        raise PermissionDenied(f"This needs an operator with the permission {permission}.")


def reason_of(request: Request, given: str | None = None) -> str:
    """Why, for the audit log: what the body says, else `?reason=`.

    An operator must say it, as the admin and manage.py demand too; a tenant that manages what is its own need not.
    Raises InvalidInput.
    """
    said = request.query_params.get("reason", "") if given is None else given
    reason = said.replace("\x00", "").strip()[:MAX_REASON]
    if not reason and tenant_of(request) is None:
        errors = [{"field": "reason", "error": "must not be empty"}]
        raise InvalidInput("Say why: give a reason. It goes to the audit log.", errors=errors)
    return reason


def scope_of(request: Request, permission: str) -> Tenant | None:
    """Whose rows may be seen: the tenant's own, or everyone's (None) for an operator with the permission."""
    tenant = tenant_of(request)
    if tenant is None:
        require(request, permission)
    return tenant


def acting_tenant(request: Request, permission: str) -> Tenant:
    """For whom something is made: the caller, or the tenant that an operator names with `?tenant=`."""
    tenant = scope_of(request, permission)
    if tenant is not None:
        return tenant
    slug = request.query_params.get("tenant", "")
    if not slug:
        raise InvalidInput("An operator names the tenant: add ?tenant=<slug>.")
    return visible_tenant(request, slug, permission)


def visible_tenant(request: Request, slug: str, permission: str) -> Tenant:
    """The tenant of this slug; another tenant's answers as if there were none."""
    own = scope_of(request, permission)
    if own is not None and own.slug != slug:
        raise NotFound(f"There is no tenant {slug!r}.")
    if "\x00" in slug:
        raise NotFound("There is no such tenant.")
    return own if own is not None else get_tenant(slug)
