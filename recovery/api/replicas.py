"""Replicas, for operators."""

from __future__ import annotations

from typing import Any

from django.db.models import Case, DurationField, ExpressionWrapper, F, QuerySet, Value, When
from django.db.models.functions import Extract, Now
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from admission.api.bodies import ReasonBody
from admission.api.principals import actor_of, require
from controlplane.api.parsing import parse_body
from controlplane.api.views import ListView, View
from controlplane.core.conf import conf
from recovery.models import Replica
from recovery.services.replicas import drain_replica, get_replica, resume_replica


class ReplicaSerializer(serializers.ModelSerializer[Replica]):
    """One incarnation of a replica."""

    beat_age_seconds = serializers.FloatField(read_only=True, help_text="By the database's clock.")
    state = serializers.CharField(read_only=True, help_text="live, draining, silent or dead.")

    class Meta:
        model = Replica
        fields = (
            "id", "name", "incarnation", "state", "host", "pid", "version", "executor", "slots", "memory_mib", "cpu",
            "started_at", "beat_at", "beat_age_seconds", "draining_at", "drain_note", "declared_dead_at",
            "held_until", "held_why",
        )  # fmt: skip
        read_only_fields = fields


class ReplicasView(ListView[Replica]):
    """Living replicas and those whose work is still being taken over."""

    serializer_class = ReplicaSerializer
    filter_backends: list[Any] = []

    def get_queryset(self) -> QuerySet[Replica]:
        """All that have a row."""
        return judged_replicas()

    @extend_schema(operation_id="replicas_list", tags=["fleet"])
    def get(self, request: Request) -> Response:
        """List replicas."""
        require(request, "recovery.view_replica")
        return self.listing()


class ReplicaDrainView(View):
    """Draining one replica."""

    @extend_schema(operation_id="replicas_drain", tags=["fleet"], request=ReasonBody, responses=ReplicaSerializer)
    def post(self, request: Request, replica: int) -> Response:
        """It is given nothing more and finishes what it has. Repeating it changes nothing."""
        require(request, "recovery.drain_replica")
        reason = parse_body(ReasonBody, request).reason
        drain_replica(get_replica(replica), actor=actor_of(request), reason=reason)
        return Response(shown(replica))


class ReplicaResumeView(View):
    """Giving one replica work again."""

    @extend_schema(operation_id="replicas_resume", tags=["fleet"], request=ReasonBody, responses=ReplicaSerializer)
    def post(self, request: Request, replica: int) -> Response:
        """It is given work again. Repeating it changes nothing."""
        require(request, "recovery.drain_replica")
        reason = parse_body(ReasonBody, request).reason
        resume_replica(get_replica(replica), actor=actor_of(request), reason=reason)
        return Response(shown(replica))


def shown(replica: int) -> Any:
    """A replica as it stands now; one that just went is not found."""
    found = judged_replicas().filter(pk=replica).first()
    return ReplicaSerializer(found or get_replica(replica)).data


def judged_replicas() -> QuerySet[Replica]:
    """With ages by the database: no web process's clock is trusted."""
    age = Extract(ExpressionWrapper(Now() - F("beat_at"), output_field=DurationField()), "epoch")
    state = Case(
        When(declared_dead_at__isnull=False, then=Value("dead")),
        When(beat_age_seconds__gt=conf().replica_stale_seconds, then=Value("silent")),
        When(draining_at__isnull=False, then=Value("draining")),
        default=Value("live"),
    )
    return Replica.objects.annotate(beat_age_seconds=age).annotate(state=state)
