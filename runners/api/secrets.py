"""Secrets: names can be read, values only written."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiParameter, extend_schema
from pydantic import Field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from admission.api.principals import REASON, acting_tenant, actor_of, reason_of, scope_of, visible_tenant
from controlplane.api.parsing import parse_body
from controlplane.api.views import ListView, View
from runners.api.bodies import Message
from runners.models import Secret
from runners.services import secrets

VIEW = "runners.view_secret"
MANAGE = "runners.manage_secret"
TENANT = OpenApiParameter("tenant", str, description="Operators name the tenant for whom they act.")


class SecretBody(Message):
    """A secret's new value. It is encrypted, and never shown again."""

    value: str = Field(json_schema_extra={"format": "password", "writeOnly": True})
    reason: str = Field(default="", max_length=1000, description="For the audit log. An operator must say it.")


class SecretSerializer(serializers.ModelSerializer[Secret]):
    """A secret as it is listed."""

    tenant = serializers.CharField(source="tenant.slug", read_only=True)

    class Meta:
        model = Secret
        fields = ("name", "tenant", "created_at", "updated_at", "updated_by")
        read_only_fields = fields


class SecretSetSerializer(serializers.Serializer[Any]):
    """What became of it."""

    name = serializers.CharField()
    created = serializers.BooleanField(help_text="false: it was there, and has a new value.")


class SecretsView(ListView[Secret]):
    """The secrets of the caller, by name."""

    serializer_class = SecretSerializer

    def get_queryset(self) -> QuerySet[Secret]:
        """The tenant's own; for an operator everyone's, or one tenant's with `?tenant=`."""
        tenant = scope_of(self.request, VIEW)
        if tenant is None and (slug := self.request.query_params.get("tenant", "")):
            tenant = visible_tenant(self.request, slug, VIEW)
        return secrets.list_secrets(tenant)

    @extend_schema(operation_id="secrets_list", tags=["secrets"], parameters=[TENANT], filters=False)
    def get(self, request: Request) -> Response:
        """List names. Values are shown to nobody."""
        return self.listing()


class SecretView(View):
    """One secret of one tenant."""

    @extend_schema(
        operation_id="secrets_set",
        tags=["secrets"],
        parameters=[TENANT],
        request=SecretBody,
        responses={200: SecretSetSerializer, 201: SecretSetSerializer},
    )
    def put(self, request: Request, name: str) -> Response:
        """Set it: 201 when it is new. Runs that name it get it as an environment variable of that name."""
        tenant = acting_tenant(request, MANAGE)
        body = parse_body(SecretBody, request)
        reason = reason_of(request, body.reason)
        created = secrets.set_secret(tenant, name, body.value, actor=actor_of(request), reason=reason)
        return Response({"name": name, "created": created}, 201 if created else 200)

    @extend_schema(operation_id="secrets_delete", tags=["secrets"], parameters=[TENANT, REASON], responses={204: None})
    def delete(self, request: Request, name: str) -> Response:
        """Delete it. Queued runs that name it fail with the reason when their turn comes."""
        tenant = acting_tenant(request, MANAGE)
        secrets.delete_secret(tenant, name, actor=actor_of(request), reason=reason_of(request))
        return Response(status=204)
