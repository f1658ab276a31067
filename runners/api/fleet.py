"""Runners for operators: enrolment, the list, pause, drain, resume, revoke."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.exceptions import APIException
from rest_framework.request import Request
from rest_framework.response import Response

from admission.api.principals import REASON, actor_of, reason_of, require
from admission.services.tenants import get_tenant
from controlplane.api.parsing import parse_body
from controlplane.api.views import ListView, View
from runners.api import bodies
from runners.api.protocol import rotated_answer
from runners.models import EnrolmentToken, Runner
from runners.services import enrolment, fleet
from runners.services.rotation import rotate_token

VIEW = "runners.view_runner"


class EnrolmentDenied(APIException):
    """As for every dead credential."""

    status_code = 401
    default_code = "bad_enrolment_token"
    auth_header = 'Bearer realm="wharfinger enrolment"'


class RunnerSerializer(serializers.ModelSerializer[Runner]):
    """A runner."""

    tenant = serializers.CharField(source="tenant.slug", read_only=True, default=None, allow_null=True)

    class Meta:
        model = Runner
        fields = (
            "id", "name", "tenant", "shown", "labels", "trust_labels", "executors", "slots", "version", "host",
            "enrolled_at", "rotated_at", "contact_at", "paused_at", "pause_note", "resume_at", "draining_at",
            "revoked_at", "one_job", "spent_at",
        )  # fmt: skip
        read_only_fields = fields


class EnrolmentTokenSerializer(serializers.ModelSerializer[EnrolmentToken]):
    """An enrolment token; its secret is in the answer to its issue only."""

    tenant = serializers.CharField(source="tenant.slug", read_only=True, default=None, allow_null=True)

    class Meta:
        model = EnrolmentToken
        fields = (
            "id",
            "name",
            "tenant",
            "shown",
            "trust_labels",
            "uses_left",
            "expires_at",
            "created_at",
            "created_by",
            "runner",
            "one_job",
        )
        read_only_fields = fields


class IssuedTokenSerializer(EnrolmentTokenSerializer):
    """With its secret, once."""

    token = serializers.CharField(source="secret", read_only=True)

    class Meta:
        model = EnrolmentToken
        fields = (*EnrolmentTokenSerializer.Meta.fields, "token")
        read_only_fields = fields


class EnrolView(View):
    """How a machine becomes a runner."""

    authentication_classes: list[Any] = []
    permission_classes: list[Any] = []

    @extend_schema(
        operation_id="runners_enrol",
        tags=["runner"],
        auth=[],
        request=bodies.EnrolBody,
        responses={201: bodies.EnrolAnswer},
    )
    def post(self, request: Request) -> Response:
        """Give an enrolment token, get the runner's own, which is shown here once."""
        body = parse_body(bodies.EnrolBody, request)
        machine = enrolment.Machine(
            body.name, body.slots, tuple(body.executors), body.version, body.host, one_job=body.one_job
        )
        try:
            runner, token = enrolment.enrol(body.token, machine, body.labels)
        except enrolment.EnrolmentRefused as error:
            raise EnrolmentDenied(str(error)) from error
        return Response({"id": runner.pk, "name": runner.name, "token": token}, 201)


class RunnersView(ListView[Runner]):
    """All runners."""

    serializer_class = RunnerSerializer
    filter_backends: list[Any] = []

    def get_queryset(self) -> QuerySet[Runner]:
        """With the tenant that each belongs to."""
        return Runner.objects.select_related("tenant")

    @extend_schema(operation_id="runners_list", tags=["fleet"])
    def get(self, request: Request) -> Response:
        """List runners, newest first."""
        require(request, VIEW)
        return self.listing()


class RunnerVerbView(View):
    """One verb over a runner; subclasses name it."""

    permission = "runners.pause_runner"

    def act(self, request: Request, runner: int, verb: Callable[..., object]) -> Response:
        """Check, act, and show the runner as it stands now."""
        require(request, self.permission)
        return self.done(request, runner, verb, parse_body(bodies.ReasonBody, request).reason)

    def done(self, request: Request, runner: int, verb: Callable[..., object], reason: str) -> Response:
        """Act, and show."""
        verb(runner, actor=actor_of(request), reason=reason)
        row = Runner.objects.select_related("tenant").get(pk=runner)
        return Response(RunnerSerializer(row).data)


class RunnerPauseView(RunnerVerbView):
    """Pausing."""

    @extend_schema(operation_id="runners_pause", tags=["fleet"], request=bodies.PauseBody, responses=RunnerSerializer)
    def post(self, request: Request, runner: int) -> Response:
        """No new work until resumed, by somebody or at a time."""
        require(request, self.permission)
        body = parse_body(bodies.PauseBody, request)
        pause = partial(fleet.pause_runner, resume_at=body.resume_at)
        return self.done(request, runner, pause, body.reason)


class RunnerDrainView(RunnerVerbView):
    """Draining."""

    @extend_schema(operation_id="runners_drain", tags=["fleet"], request=bodies.ReasonBody, responses=RunnerSerializer)
    def post(self, request: Request, runner: int) -> Response:
        """No new work; the agent finishes what it has and ends."""
        return self.act(request, runner, fleet.drain_runner)


class RunnerResumeView(RunnerVerbView):
    """Resuming."""

    @extend_schema(
        operation_id="runners_resume", tags=["fleet"], request=bodies.ReasonBody, responses=RunnerSerializer
    )
    def post(self, request: Request, runner: int) -> Response:
        """Takes work again, after a pause or a drain."""
        return self.act(request, runner, fleet.resume_runner)


class RunnerRevokeView(RunnerVerbView):
    """Revoking."""

    permission = "runners.revoke_runner"

    @extend_schema(
        operation_id="runners_revoke", tags=["fleet"], request=bodies.ReasonBody, responses=RunnerSerializer
    )
    def post(self, request: Request, runner: int) -> Response:
        """Its token is dead from the next call on, and its runs are taken from it."""
        return self.act(request, runner, fleet.revoke_runner)


class RunnerRotateView(View):
    """A new token for a runner."""

    @extend_schema(
        operation_id="runners_rotate", tags=["fleet"], request=bodies.RotateReasonBody, responses=bodies.RotatedAnswer
    )
    def post(self, request: Request, runner: int) -> Response:
        """The new token is in this answer and nowhere else; the old one opens until it was used."""
        require(request, "runners.rotate_runner")
        body = parse_body(bodies.RotateReasonBody, request)
        rotated = rotate_token(
            runner, actor=actor_of(request), reason=body.reason, overlap_seconds=body.overlap_seconds
        )
        return Response(rotated_answer(rotated))


class EnrolmentTokensView(ListView[EnrolmentToken]):
    """Enrolment tokens that still buy something."""

    serializer_class = EnrolmentTokenSerializer
    filter_backends: list[Any] = []

    def get_queryset(self) -> QuerySet[EnrolmentToken]:
        """Unused and unexpired ones."""
        return enrolment.open_enrolment_tokens()

    @extend_schema(operation_id="enrolment_tokens_list", tags=["fleet"])
    def get(self, request: Request) -> Response:
        """List them, newest first, without their secrets."""
        require(request, "runners.enrol_runner")
        return self.listing()

    @extend_schema(
        operation_id="enrolment_tokens_issue",
        tags=["fleet"],
        request=bodies.EnrolmentTokenBody,
        responses={201: IssuedTokenSerializer},
    )
    def post(self, request: Request) -> Response:
        """Issue one; the secret is in this answer and nowhere else."""
        require(request, "runners.enrol_runner")
        body = parse_body(bodies.EnrolmentTokenBody, request)
        row: Any
        row, secret = enrolment.issue_enrolment_token(
            actor=actor_of(request),
            name=body.name,
            uses=body.uses,
            lifetime=timedelta(seconds=body.lifetime_seconds),
            tenant=get_tenant(body.tenant) if body.tenant else None,
            trust_labels=body.trust_labels,
            runner=fleet.get_runner(body.runner) if body.runner is not None else None,
            one_job=body.one_job,
            reason=reason_of(request, body.reason),
        )
        row.secret = secret
        return Response(IssuedTokenSerializer(row).data, 201)


class EnrolmentTokenView(View):
    """One enrolment token."""

    @extend_schema(operation_id="enrolment_tokens_revoke", tags=["fleet"], parameters=[REASON], responses={204: None})
    def delete(self, request: Request, token: int) -> Response:
        """No further runner enrols with it."""
        require(request, "runners.enrol_runner")
        found = enrolment.get_enrolment_token(token)
        enrolment.revoke_enrolment_token(found, actor=actor_of(request), reason=reason_of(request))
        return Response(status=204)
