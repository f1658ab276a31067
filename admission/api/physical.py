"""Physical slots, for operators: they bound an instance's machine, not a tenant."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from drf_spectacular.utils import extend_schema
from pydantic import BaseModel, ConfigDict, Field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from admission.api.principals import MAX_REASON, actor_of, require
from admission.physical.entitlement import Entitlement, Unrestricted
from admission.services.physical import SlotsView, read_slots, reconcile_now
from controlplane.api.parsing import parse_body
from controlplane.api.views import View

VIEW = "admission.view_physicalreport"
RECONCILE = "admission.reconcile_physical"


class ReconcileBody(BaseModel):
    """Why; for the audit log."""

    model_config = ConfigDict(extra="forbid", strict=True)

    reason: str = Field(min_length=1, max_length=MAX_REASON)


class ReconcileSerializer(serializers.Serializer[Any]):
    """The request that every process answers with a pass."""

    request = serializers.IntegerField()


class SlotHolderSerializer(serializers.Serializer[Any]):
    """One taken slot."""

    token = serializers.CharField()
    state = serializers.CharField(help_text="As stored: reserved, running or fenced.")
    recovering = serializers.BooleanField(help_text="Fenced or past its deadline: taken until removal is confirmed.")
    owner = serializers.CharField()
    run = serializers.CharField(allow_blank=True, help_text="run/attempt")
    generation = serializers.IntegerField()
    age_seconds = serializers.FloatField()
    deadline_seconds = serializers.FloatField(help_text="Left, by the server's clock; 0 or less: expired.")
    container_id = serializers.CharField(allow_null=True)


class SlotWaiterSerializer(serializers.Serializer[Any]):
    """Who waits for a slot."""

    token = serializers.CharField()
    owner = serializers.CharField()
    run = serializers.CharField(allow_blank=True)
    age_seconds = serializers.FloatField()


class SlotCountsSerializer(serializers.Serializer[Any]):
    """Waiting takes no slot; the sum of the others does."""

    waiting = serializers.IntegerField()
    reserved = serializers.IntegerField()
    running = serializers.IntegerField()
    recovering = serializers.IntegerField()


class SlotConfigSerializer(serializers.Serializer[Any]):
    """What is stored."""

    protocol = serializers.CharField()
    daemon = serializers.CharField()
    limit = serializers.IntegerField()
    generation = serializers.IntegerField()
    ledger_number = serializers.IntegerField()
    ledger = serializers.CharField()
    lockdown_id = serializers.CharField(allow_blank=True)
    lockdown_reason = serializers.CharField(allow_blank=True)
    lockdown_age_seconds = serializers.FloatField()


class SlotProcessSerializer(serializers.Serializer[Any]):
    """The latest pass of one process."""

    process = serializers.CharField()
    machine = serializers.CharField()
    limit = serializers.IntegerField()
    generation = serializers.IntegerField()
    containers_running = serializers.IntegerField()
    containers_created = serializers.IntegerField()
    containers_other = serializers.IntegerField()
    without_token = serializers.IntegerField()
    without_container = serializers.IntegerField()
    took_seconds = serializers.FloatField()
    last_error = serializers.CharField(allow_blank=True)
    reconcile_seen = serializers.IntegerField()
    age_seconds = serializers.FloatField()
    error_age_seconds = serializers.FloatField(allow_null=True)


class SlotsSerializer(serializers.Serializer[Any]):
    """Everything that is known."""

    as_of = serializers.DateTimeField()
    restricted = serializers.BooleanField(help_text="False: self-hosted without a limit; nothing is counted.")
    hosted = serializers.BooleanField(allow_null=True)
    limit = serializers.IntegerField(allow_null=True, help_text="This process's entitlement; null: none, or refused.")
    generation = serializers.IntegerField(allow_null=True)
    error = serializers.CharField(allow_blank=True, help_text="Why nothing could be read, or is executed.")
    config = SlotConfigSerializer(allow_null=True)
    counts = SlotCountsSerializer(allow_null=True)
    holders = SlotHolderSerializer(many=True)
    waiting = SlotWaiterSerializer(many=True)
    processes = SlotProcessSerializer(many=True)
    drift = serializers.ListField(child=serializers.CharField())


def described(view: SlotsView) -> dict[str, Any]:
    """The answer of REST and of `manage.py slots --json`."""
    entitled = view.entitlement if isinstance(view.entitlement, Entitlement) else None
    snapshot = view.snapshot
    config = snapshot.config if snapshot else None
    return {
        "as_of": view.as_of,
        "restricted": not isinstance(view.entitlement, Unrestricted),
        "hosted": getattr(view.entitlement, "hosted", None),
        "limit": entitled.limit if entitled else None,
        "generation": entitled.generation if entitled else None,
        "error": view.error,
        "config": asdict(config) if config else None,
        "counts": asdict(snapshot.counts) if snapshot else None,
        "holders": [{**asdict(h), "recovering": h.recovering} for h in snapshot.holders] if snapshot else [],
        "waiting": [asdict(w) for w in snapshot.waiting] if snapshot else [],
        "processes": [asdict(p) for p in view.processes],
        "drift": list(view.drift),
    }


class PhysicalView(View):
    """The slots of this instance."""

    @extend_schema(operation_id="physical_read", tags=["fleet"], responses=SlotsSerializer)
    def get(self, request: Request) -> Response:
        """Limit, holders, waiting ones and the latest passes. Bounded by the limit: not paginated."""
        require(request, VIEW)
        return Response(SlotsSerializer(described(read_slots())).data)


class PhysicalReconcileView(View):
    """A pass over slots and containers, now."""

    @extend_schema(
        operation_id="physical_reconcile",
        tags=["fleet"],
        request=ReconcileBody,
        responses={202: ReconcileSerializer},
    )
    def post(self, request: Request) -> Response:
        """Ask every process of the instance for it. 409: no limit is set, so nothing is counted."""
        require(request, RECONCILE)
        number = reconcile_now(actor=actor_of(request), reason=parse_body(ReconcileBody, request).reason)
        return Response(ReconcileSerializer({"request": number}).data, status=202)
