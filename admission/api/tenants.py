"""Tenants: operators manage them, a tenant sees itself."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from admission.api.bodies import PauseBody, ReasonBody, TenantBody, TenantPatchBody
from admission.api.principals import REASON, actor_of, reason_of, require, scope_of, visible_tenant
from admission.api.reading import list_tenants
from admission.api.serializers import TenantSerializer
from admission.models import Tenant
from admission.services import tenants as service
from admission.services.deleting import delete_tenant
from controlplane.api.parsing import parse_body
from controlplane.api.views import ListView, View
from controlplane.core.errors import InvalidInput

VIEW = "admission.view_tenant"
DRAIN = OpenApiParameter("drain", bool, description="Cancel what is queued, wait for what runs, then delete.")


def shown(tenant: Tenant) -> Any:
    """A tenant as it stands now."""
    return TenantSerializer(list_tenants().get(pk=tenant.pk)).data


class TenantsView(ListView[Tenant]):
    """All tenants that the caller may see."""

    serializer_class = TenantSerializer
    filter_backends: list[Any] = []

    def get_queryset(self) -> QuerySet[Tenant]:
        """Operators: all; a tenant: itself."""
        tenant = scope_of(self.request, VIEW)
        return list_tenants() if tenant is None else list_tenants().filter(pk=tenant.pk)

    @extend_schema(operation_id="tenants_list", tags=["tenants"])
    def get(self, request: Request) -> Response:
        """List tenants with limit and use."""
        return self.listing()

    @extend_schema(
        operation_id="tenants_create", tags=["tenants"], request=TenantBody, responses={201: TenantSerializer}
    )
    def post(self, request: Request) -> Response:
        """Create a tenant without a quota."""
        require(request, "admission.add_tenant")
        body = parse_body(TenantBody, request)
        tenant = service.create_tenant(actor=actor_of(request), **body.model_dump())
        return Response(shown(tenant), 201)


class TenantView(View):
    """One tenant."""

    @extend_schema(operation_id="tenants_read", tags=["tenants"], responses=TenantSerializer)
    def get(self, request: Request, slug: str) -> Response:
        """A tenant with limit and use."""
        return Response(shown(visible_tenant(request, slug, VIEW)))

    @extend_schema(
        operation_id="tenants_change", tags=["tenants"], request=TenantPatchBody, responses=TenantSerializer
    )
    def patch(self, request: Request, slug: str) -> Response:
        """Change name, weight or queue depth; what is left out stays."""
        require(request, "admission.change_tenant")
        tenant = service.get_tenant(slug)
        body = parse_body(TenantPatchBody, request)
        changes = body.model_dump(include=body.model_fields_set - {"reason"})
        if not changes:
            raise InvalidInput("Nothing to change: give name, weight or queue_depth.")
        service.change_tenant(tenant, actor=actor_of(request), reason=body.reason, **changes)
        return Response(shown(tenant))

    @extend_schema(
        operation_id="tenants_delete",
        tags=["tenants"],
        parameters=[DRAIN, REASON],
        responses={202: TenantSerializer, 204: None},
    )
    def delete(self, request: Request, slug: str) -> Response:
        """Delete with all history: 204 gone, 202 it drains first, 409 it has live work, or runners, and does not."""
        require(request, "admission.delete_tenant")
        tenant = service.get_tenant(slug)
        drain = request.query_params.get("drain", "").lower() in ("1", "true", "yes")
        gone = delete_tenant(tenant, actor=actor_of(request), reason=reason_of(request), drain=drain)
        return Response(status=204) if gone else Response(shown(tenant), 202)


class TenantPauseView(View):
    """Pausing a tenant."""

    @extend_schema(operation_id="tenants_pause", tags=["tenants"], request=PauseBody, responses=TenantSerializer)
    def post(self, request: Request, slug: str) -> Response:
        """Stop admission; running work goes on. Repeating it changes nothing."""
        require(request, "admission.pause_tenant")
        tenant = service.get_tenant(slug)
        body = parse_body(PauseBody, request)
        service.pause_tenant(tenant, actor=actor_of(request), reason=body.reason, resume_at=body.resume_at)
        return Response(shown(tenant))


class TenantResumeView(View):
    """Resuming a tenant."""

    @extend_schema(operation_id="tenants_resume", tags=["tenants"], request=ReasonBody, responses=TenantSerializer)
    def post(self, request: Request, slug: str) -> Response:
        """Admit again. Repeating it changes nothing."""
        require(request, "admission.pause_tenant")
        tenant = service.get_tenant(slug)
        body = parse_body(ReasonBody, request)
        service.resume_tenant(tenant, actor=actor_of(request), reason=body.reason)
        return Response(shown(tenant))
