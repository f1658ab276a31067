"""Effects outside the database, for operators: what is to do, what was given up, and trying it again."""

from __future__ import annotations

from typing import Any

import django_filters as filters
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from admission.api.bodies import ReasonBody
from admission.api.principals import actor_of, require
from controlplane.api.parsing import parse_body
from controlplane.api.views import ListView, View
from leadership.models import Intent
from leadership.services.intents import get_intent, retry_intent


class IntentSerializer(serializers.ModelSerializer[Intent]):
    """One effect; what it says is not shown: it may name people."""

    class Meta:
        model = Intent
        fields = ("id", "kind", "key", "created_at", "next_at", "tries", "done_at", "dead_at", "error")
        read_only_fields = fields


class IntentFilter(filters.FilterSet):
    """Of intents."""

    kind = filters.CharFilter("kind", max_length=40)
    given_up = filters.BooleanFilter("dead_at", lookup_expr="isnull", exclude=True)

    class Meta:
        model = Intent
        fields: list[str] = []


class IntentsView(ListView[Intent]):
    """Intents."""

    serializer_class = IntentSerializer
    filterset_class: Any = IntentFilter

    def get_queryset(self) -> QuerySet[Intent]:
        """All of them, done ones too."""
        return Intent.objects.all()

    @extend_schema(operation_id="intents_list", tags=["fleet"])
    def get(self, request: Request) -> Response:
        """List them, newest first."""
        require(request, "leadership.view_intent")
        return self.listing()


class RetryIntentView(View):
    """One intent that was given up."""

    @extend_schema(operation_id="intents_retry", tags=["fleet"], request=ReasonBody, responses={202: IntentSerializer})
    def post(self, request: Request, intent: int) -> Response:
        """Try it again at once, and as often as a new one. 409: it was not given up."""
        require(request, "leadership.retry_intent")
        reason = parse_body(ReasonBody, request).reason
        retry_intent(get_intent(intent), actor=actor_of(request), reason=reason)
        return Response(IntentSerializer(get_intent(intent)).data, status=202)
