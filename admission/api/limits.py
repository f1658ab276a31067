"""Limits below the tenant's: concurrency keys and harnesses."""

from __future__ import annotations

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from admission.api.bodies import LimitBody
from admission.api.filters import LimitFilter
from admission.api.principals import actor_of, require, scope_of
from admission.api.quotas import SET
from admission.api.serializers import LimitChangeSerializer, LimitSerializer
from admission.models import Counter
from admission.services.limits import LimitChange, list_limits, set_harness_capacity, set_key_limit
from admission.services.tenants import get_tenant
from admission.states import Scope
from controlplane.api.parsing import parse_body
from controlplane.api.views import ListView
from controlplane.core.audit import Actor
from controlplane.core.errors import InvalidInput


class LimitsView(ListView[Counter]):
    """The limits that the caller may see."""

    serializer_class = LimitSerializer
    filterset_class = LimitFilter
    queryset = Counter.objects.none()  # says only what the rows are: for the schema, where nobody calls

    def get_queryset(self) -> QuerySet[Counter]:
        """Operators: all; a tenant: its own keys."""
        return list_limits(scope_of(self.request, "admission.view_counter"))

    @extend_schema(operation_id="limits_list", tags=["limits"])
    def get(self, request: Request) -> Response:
        """List the limits of concurrency keys and harnesses with what is in flight under them."""
        return self.listing()

    @extend_schema(
        operation_id="limits_set", tags=["limits"], filters=False, request=LimitBody, responses=LimitChangeSerializer
    )
    def put(self, request: Request) -> Response:
        """Set one. Lowering it below what is in flight kills nothing and admits nothing until that drained."""
        require(request, SET)
        body = parse_body(LimitBody, request)
        change = _set(body, actor_of(request))
        shown = {"tenant": body.tenant, "key": body.key, "scope": body.scope, "sentence": change.sentence()}
        numbers = {"before": change.before, "limit": change.limit, "in_flight": change.in_flight}
        return Response(LimitChangeSerializer({**shown, **numbers}).data)


def _set(body: LimitBody, actor: Actor) -> LimitChange:
    if (Scope(body.scope) is Scope.KEY) != (body.tenant is not None):
        raise InvalidInput("A concurrency key is of a tenant: name it. A harness is not: leave the tenant out.")
    if body.tenant is None:
        return set_harness_capacity(body.key, body.limit, actor=actor, reason=body.reason)
    return set_key_limit(get_tenant(body.tenant), body.key, body.limit, actor=actor, reason=body.reason)
