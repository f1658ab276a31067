"""Leases and loops, for operators. In this app, because admission knows who calls, and leadership does not know it."""

from __future__ import annotations

from dataclasses import asdict

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from admission.api.bodies import ReasonBody
from admission.api.principals import actor_of, require
from controlplane.api.parsing import parse_body
from controlplane.api.views import View
from controlplane.core.errors import NotFound
from leadership.selectors import LeaseState, read_alarms, read_leases, read_loops
from leadership.services import operating


class LeaseSerializer(serializers.Serializer[LeaseState]):
    """Who leads a role."""

    role = serializers.CharField()
    led = serializers.BooleanField(help_text="Somebody holds it now, by the database's clock.")
    term = serializers.IntegerField()
    holder_name = serializers.CharField(allow_blank=True)
    acquired_at = serializers.DateTimeField()
    renewed_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField()
    seconds_left = serializers.FloatField(help_text="Negative: it ran out that long ago.")
    step_down_at = serializers.DateTimeField(allow_null=True)
    step_down_by = serializers.CharField(allow_blank=True)
    step_down_reason = serializers.CharField(allow_blank=True)


class LoopSerializer(serializers.Serializer[object]):
    """A loop and its last run."""

    loop = serializers.CharField()
    gate = serializers.CharField(help_text="leader: once in the fleet; local: in each process.")
    seconds = serializers.FloatField()
    why = serializers.CharField(allow_blank=True)
    state = serializers.CharField(allow_null=True)
    last_at = serializers.DateTimeField(allow_null=True)
    age_seconds = serializers.FloatField(allow_null=True)
    took_seconds = serializers.FloatField(allow_null=True)
    result = serializers.JSONField(allow_null=True)
    error = serializers.CharField(allow_blank=True)
    place = serializers.CharField(allow_blank=True)
    term = serializers.IntegerField(allow_null=True)


class AlarmSerializer(serializers.Serializer[object]):
    """Something that no process can put right by itself."""

    code = serializers.CharField()
    text = serializers.CharField()


class LeadershipSerializer(serializers.Serializer[object]):
    """Leases, loops, alarms."""

    leases = LeaseSerializer(many=True)
    loops = LoopSerializer(many=True)
    alarms = AlarmSerializer(many=True)


class StepDownSerializer(serializers.Serializer[operating.StepDown]):
    """The term that was asked to end."""

    role = serializers.CharField()
    term = serializers.IntegerField()
    holder_name = serializers.CharField()


class FireSerializer(serializers.Serializer[object]):
    """The extra run that was sent."""

    loop = serializers.CharField()
    fire_at = serializers.DateTimeField()


class LeasesView(View):
    """Who leads, and what it keeps going."""

    @extend_schema(operation_id="leases_list", tags=["fleet"], responses=LeadershipSerializer)
    def get(self, request: Request) -> Response:
        """Leases, loops with their last runs, and alarms. A handful of rows: not paginated."""
        require(request, "leadership.view_lease")
        body = {"leases": read_leases(), "loops": read_loops(), "alarms": [asdict(a) for a in read_alarms()]}
        return Response(LeadershipSerializer(body).data)


class StepDownView(View):
    """The leader of one role."""

    @extend_schema(
        operation_id="leases_step_down", tags=["fleet"], request=ReasonBody, responses={202: StepDownSerializer}
    )
    def post(self, request: Request, role: str) -> Response:
        """Ask it to hand its lease back; it does so at its next look. 409: nobody leads, or it was asked already."""
        require(request, "leadership.step_down")
        if role not in {lease.role for lease in read_leases()}:
            raise NotFound(f"There is no role {role!r}.")
        asked = operating.step_down(role, actor=actor_of(request), reason=parse_body(ReasonBody, request).reason)
        return Response(StepDownSerializer(asked).data, status=202)


class RunLoopView(View):
    """One gated loop."""

    @extend_schema(operation_id="loops_run", tags=["fleet"], request=ReasonBody, responses={202: FireSerializer})
    def post(self, request: Request, loop: str) -> Response:
        """Send one extra run. 409: it is waiting or running, or nobody leads."""
        require(request, "leadership.run_loop")
        fire_at = operating.run_now(loop, actor=actor_of(request), reason=parse_body(ReasonBody, request).reason)
        return Response(FireSerializer({"loop": loop, "fire_at": fire_at}).data, status=202)
