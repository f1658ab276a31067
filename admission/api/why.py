"""Why a run is waiting."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from admission.api.principals import scope_of
from admission.services.blockers import Code
from admission.services.why import explain
from admission.states import RunState
from controlplane.api.views import View

VIEW = "admission.view_run"


class HolderSerializer(serializers.Serializer[Any]):
    """Who holds part of a limit. Of other tenants' work only weight and lease are shown to a tenant."""

    holder = serializers.CharField(help_text="run.attempt, or an outside system's own id; empty: another tenant's.")
    tenant = serializers.CharField()
    run = serializers.IntegerField(allow_null=True)
    attempt = serializers.IntegerField(allow_null=True)
    weight = serializers.IntegerField()
    driver = serializers.CharField()
    acquired_at = serializers.DateTimeField()
    lease_left_seconds = serializers.FloatField(help_text="Until it can be taken, by the database's clock.")
    reachable = serializers.BooleanField(allow_null=True, help_text="Whether its driver is heard; null: no driver.")
    driver_heard_seconds_ago = serializers.FloatField(allow_null=True)


class BlockerSerializer(serializers.Serializer[Any]):
    """One thing that keeps the run waiting."""

    code = serializers.ChoiceField([code.value for code in Code])
    sentence = serializers.CharField()
    scope = serializers.CharField(help_text="Of a limit: tenant, key, harness or session; else empty.")
    key = serializers.CharField(help_text="Of a limit: its tenant, key or harness.")
    limit = serializers.IntegerField(allow_null=True)
    in_flight = serializers.IntegerField(allow_null=True)
    until = serializers.DateTimeField(allow_null=True, help_text="When it ends by itself.")
    lapses_in_seconds = serializers.FloatField(allow_null=True, help_text="Until the first unheard permit lapses.")
    labels = serializers.DictField(child=serializers.CharField(), help_text="Labels that no driver has.")
    holders = HolderSerializer(many=True, help_text="The oldest, at most 20.")
    holder_count = serializers.IntegerField(help_text="All of them, counted up to 10,001.")


class StandingSerializer(serializers.Serializer[Any]):
    """Where the run stands in its tenant's queue, and its tenant among the others."""

    position = serializers.IntegerField(help_text="1: next of its tenant. Counted up to 10,000.")
    position_beyond = serializers.BooleanField()
    tenants_ahead = serializers.IntegerField()
    tenants_ahead_beyond = serializers.BooleanField()
    weight = serializers.FloatField()
    share = serializers.FloatField(help_text="Of the fleet, among the tenants that have work waiting now.")
    virtual_lag = serializers.FloatField(help_text="How far its tenant is ahead of its share; 0 or less: next.")


class WhySerializer(serializers.Serializer[Any]):
    """The answer, most decisive blocker first."""

    run = serializers.IntegerField()
    tenant = serializers.CharField()
    state = serializers.ChoiceField(RunState.choices)
    as_of = serializers.DateTimeField()
    sentence = serializers.CharField(help_text="The short answer.")
    blockers = BlockerSerializer(many=True)
    standing = StandingSerializer(allow_null=True)
    next_look_at = serializers.DateTimeField(allow_null=True, help_text="Not before this.")


class RunWhyView(View):
    """Why one run is waiting."""

    @extend_schema(operation_id="runs_why", tags=["runs"], responses=WhySerializer)
    def get(self, request: Request, run: int) -> Response:
        """What blocks it, who holds that and how long yet, its place in line; or that it does not wait."""
        tenant = scope_of(request, VIEW)
        answer = explain(run, tenant_id=tenant.pk if tenant is not None else None)
        return Response(WhySerializer(answer).data)
