"""The recovery log and debts, for operators."""

from __future__ import annotations

from typing import Any

import django_filters as filters
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from admission.api.bodies import ReasonBody
from admission.api.filters import IdFilter
from admission.api.principals import actor_of, require
from controlplane.api.parsing import parse_body
from controlplane.api.views import ListView, View
from recovery.models import Outcome, RecoveryAction, RecoveryDebt
from recovery.selectors import Standing, read_standing
from recovery.services.debts import retry_debt


class ActionSerializer(serializers.ModelSerializer[RecoveryAction]):
    """One thing recovery did, or left alone."""

    class Meta:
        model = RecoveryAction
        fields = ("id", "at", "by", "replica_name", "run_id", "epoch", "outcome", "reason")
        read_only_fields = fields


class DebtSerializer(serializers.ModelSerializer[RecoveryDebt]):
    """A run of a dead replica that is not decided yet, or was."""

    class Meta:
        model = RecoveryDebt
        fields = (
            "id", "run_id", "epoch", "replica_name", "machine", "silent_at", "reason", "attempts", "opened_at",
            "tried_at", "next_at", "escalated_at", "closed_at", "closed_as",
        )  # fmt: skip
        read_only_fields = fields


class RecoverySerializer(serializers.Serializer[Standing]):
    """How recovery stands now."""

    open_debts = serializers.IntegerField()
    escalated = serializers.IntegerField(help_text="Of these: not decided after five attempts.")
    held = serializers.IntegerField(help_text="Silent replicas that are not declared dead yet, after an outage.")
    held_until = serializers.DateTimeField(allow_null=True, help_text="When the last of these holds ends.")
    claims = serializers.IntegerField(help_text="Dead replicas that are being reconciled.")
    last_pass_at = serializers.DateTimeField(allow_null=True, help_text="Of any replica.")
    last_pass_age = serializers.FloatField(allow_null=True, help_text="Seconds, by the database's clock.")


class ActionFilter(filters.FilterSet):
    """Of the recovery log."""

    outcome = filters.ChoiceFilter(choices=Outcome.choices)
    run = IdFilter("run_id")
    replica = filters.CharFilter("replica_name", max_length=200)

    class Meta:
        model = RecoveryAction
        fields: list[str] = []


class DebtFilter(filters.FilterSet):
    """Of debts."""

    open = filters.BooleanFilter("closed_at", lookup_expr="isnull")
    escalated = filters.BooleanFilter("escalated_at", lookup_expr="isnull", exclude=True)
    run = IdFilter("run_id")
    replica = filters.CharFilter("replica_name", max_length=200)

    class Meta:
        model = RecoveryDebt
        fields: list[str] = []


class RecoveryView(View):
    """The standing."""

    @extend_schema(operation_id="recovery_standing", tags=["fleet"], responses=RecoverySerializer)
    def get(self, request: Request) -> Response:
        """Open debts, holds in force with their end, and the last pass."""
        require(request, "recovery.view_recoverydebt")
        return Response(RecoverySerializer(read_standing()).data)


class RecoveryLogView(ListView[RecoveryAction]):
    """What recovery did, and what it left alone, and why."""

    serializer_class = ActionSerializer
    filterset_class: Any = ActionFilter

    def get_queryset(self) -> QuerySet[RecoveryAction]:
        """All of it."""
        return RecoveryAction.objects.all()

    @extend_schema(operation_id="recovery_log", tags=["fleet"])
    def get(self, request: Request) -> Response:
        """List it, newest first."""
        require(request, "recovery.view_recoveryaction")
        return self.listing()


class RecoveryDebtsView(ListView[RecoveryDebt]):
    """Debts."""

    serializer_class = DebtSerializer
    filterset_class: Any = DebtFilter

    def get_queryset(self) -> QuerySet[RecoveryDebt]:
        """All of them, paid ones too."""
        return RecoveryDebt.objects.all()

    @extend_schema(operation_id="recovery_debts", tags=["fleet"])
    def get(self, request: Request) -> Response:
        """List them, newest first."""
        require(request, "recovery.view_recoverydebt")
        return self.listing()


class RetryDebtView(View):
    """One debt."""

    @extend_schema(
        operation_id="recovery_debt_retry", tags=["fleet"], request=ReasonBody, responses={202: DebtSerializer}
    )
    def post(self, request: Request, debt: int) -> Response:
        """Have the next pass look at it. 409: it is paid."""
        require(request, "recovery.retry_debt")
        reason = parse_body(ReasonBody, request).reason
        return Response(DebtSerializer(retry_debt(debt, actor=actor_of(request), reason=reason)).data, status=202)
