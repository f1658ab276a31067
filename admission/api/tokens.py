"""API tokens: a tenant issues, lists and revokes its own; an operator those of the tenant that he names."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from admission.api.bodies import TokenBody
from admission.api.principals import REASON, acting_tenant, actor_of, reason_of
from admission.api.runs import TENANT
from admission.models import ApiToken
from admission.services import tenant_tokens
from admission.services.tenants import issue_token, revoke_token
from controlplane.api.parsing import parse_body
from controlplane.api.views import ListView, View


class TokenSerializer(serializers.ModelSerializer[ApiToken]):
    """A token; its secret is in the answer to its issue only."""

    tenant = serializers.CharField(source="tenant.slug", read_only=True)
    status = serializers.SerializerMethodField()

    class Meta:
        model = ApiToken
        fields = (
            "id", "tenant", "name", "shown", "status", "created_at", "expires_at", "last_used_at", "revoked_at",
        )  # fmt: skip
        read_only_fields = fields

    def get_status(self, token: ApiToken) -> str:
        """valid, expired or revoked."""
        return tenant_tokens.status_of(token)


class IssuedSerializer(TokenSerializer):
    """With its secret, once."""

    token = serializers.CharField(source="secret", read_only=True)

    class Meta:
        model = ApiToken
        fields = (*TokenSerializer.Meta.fields, "token")
        read_only_fields = fields


class TokensView(ListView[ApiToken]):
    """The tokens of one tenant."""

    serializer_class = TokenSerializer
    filter_backends: list[Any] = []

    def get_queryset(self) -> QuerySet[ApiToken]:
        """The caller's own."""
        return tenant_tokens.list_tokens(acting_tenant(self.request, "admission.view_apitoken"))

    @extend_schema(operation_id="tokens_list", tags=["tokens"], parameters=[TENANT])
    def get(self, request: Request) -> Response:
        """List them, newest first, without their secrets."""
        return self.listing()

    @extend_schema(
        operation_id="tokens_issue",
        tags=["tokens"],
        parameters=[TENANT],
        request=TokenBody,
        responses={201: IssuedSerializer},
    )
    def post(self, request: Request) -> Response:
        """Issue one; the secret is in this answer and nowhere else."""
        tenant = acting_tenant(request, "admission.add_apitoken")
        body = parse_body(TokenBody, request)
        expires_at = tenant_tokens.expiry(body.lifetime_seconds)
        row: Any
        reason = reason_of(request, body.reason)
        row, secret = issue_token(tenant, body.name, actor=actor_of(request), reason=reason, expires_at=expires_at)
        row.refresh_from_db()
        row.secret = secret
        return Response(IssuedSerializer(row).data, 201)


class TokenView(View):
    """One token."""

    @extend_schema(operation_id="tokens_revoke", tags=["tokens"], parameters=[TENANT, REASON], responses={204: None})
    def delete(self, request: Request, token: int) -> Response:
        """Refused from the next call on; repeating it changes nothing."""
        tenant = acting_tenant(request, "admission.change_apitoken")
        found = tenant_tokens.get_token(tenant, token)
        revoke_token(found, actor=actor_of(request), reason=reason_of(request))
        return Response(status=204)
