"""Runs: submit, list, look, cancel."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.urls import reverse
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from admission.api.bodies import CancelBody, ReasonBody
from admission.api.filters import RunFilter
from admission.api.principals import acting_tenant, actor_of, require, scope_of
from admission.api.reading import latest_attempts, list_runs, timeline
from admission.api.serializers import RunDetailSerializer, RunSerializer, SubmittedSerializer, shown_submitted
from admission.models import Run, Tenant
from admission.services.runs import cancel_runs, requeue_runs
from admission.services.submitting import Outcome, submit_run
from admission.spec import RunSpec
from admission.states import HOLDING, TERMINAL
from controlplane.api.parsing import parse_body
from controlplane.api.views import ListView, View
from controlplane.core.errors import Conflict, NotFound

TENANT = OpenApiParameter("tenant", str, description="Operators name the tenant for whom they act.")
KEY = OpenApiParameter("Idempotency-Key", str, "header", description="The same key with the same body: the same run.")
VIEW = "admission.view_run"


def find_run(tenant: Tenant | None, run: int) -> Run:
    """A run with all its fields; another tenant's answers as if there were none."""
    found = Run.objects.select_related("tenant", "batch").filter(pk=run)
    row = (found if tenant is None else found.filter(tenant=tenant)).first()
    if row is None:
        raise NotFound(f"There is no run {run}.")
    return row


class RunsView(ListView[Run]):
    """All runs of the caller."""

    serializer_class = RunSerializer
    filterset_class = RunFilter
    queryset = Run.objects.none()  # says only what the rows are: for the schema, where nobody calls

    def get_queryset(self) -> QuerySet[Run]:
        """What the caller may see."""
        return list_runs(scope_of(self.request, VIEW))

    @extend_schema(operation_id="runs_list", tags=["runs"])
    def get(self, request: Request) -> Response:
        """List runs, newest first."""
        return self.listing()

    @extend_schema(
        operation_id="runs_submit",
        tags=["runs"],
        parameters=[KEY, TENANT],
        filters=False,
        request=RunSpec,
        responses={201: SubmittedSerializer, 200: SubmittedSerializer},
    )
    def post(self, request: Request) -> Response:
        """Submit one run: 201 when it is new, 200 when this key submitted it before."""
        tenant = acting_tenant(request, "admission.submit_run")
        key = request.headers.get("Idempotency-Key")
        result = submit_run(tenant, request.data, actor=actor_of(request), key=key)
        status = 201 if result.outcome is Outcome.CREATED else 200
        address = request.build_absolute_uri(reverse("run", args=[result.run]))
        return Response(shown_submitted(result), status, headers={"Location": address})


class RunView(View):
    """One run."""

    @extend_schema(operation_id="runs_read", tags=["runs"], responses=RunDetailSerializer)
    def get(self, request: Request, run: int) -> Response:
        """A run with its specification, attempts and timeline."""
        row: Any = find_run(scope_of(request, VIEW), run)
        row.latest_attempts = latest_attempts(run)
        row.timeline = timeline(row, row.latest_attempts)
        return Response(RunDetailSerializer(row).data)


class RunCancelView(View):
    """Cancelling one run."""

    @extend_schema(
        operation_id="runs_cancel",
        tags=["runs"],
        request=CancelBody,
        responses={200: RunSerializer, 202: RunSerializer},
    )
    def post(self, request: Request, run: int) -> Response:
        """Cancel: 200 when it ended here (it was queued), 202 when its driver was asked to stop it."""
        tenant = scope_of(request, "admission.cancel_run")
        body = parse_body(CancelBody, request)
        tenant_id = tenant.pk if tenant is not None else None
        state = cancel_runs([run], actor=actor_of(request), reason=body.reason, tenant_id=tenant_id).get(run)
        row = find_run(tenant, run)
        if state is None:
            raise Conflict(f"Run {run} has ended already: {row.state}.", code="run_ended")
        return Response(RunSerializer(row).data, 200 if state in TERMINAL else 202)


class RunRequeueView(View):
    """Taking one run from its driver."""

    @extend_schema(operation_id="runs_requeue", tags=["runs"], request=ReasonBody, responses=RunSerializer)
    def post(self, request: Request, run: int) -> Response:
        """For operators: back into the queue, or ended if no try is left; its driver learns of it at its next call.

        409: no driver has it, or strict fencing is on.
        """
        require(request, "admission.requeue_run")
        reason = parse_body(ReasonBody, request).reason
        row = find_run(None, run)
        held = [(run, row.epoch)] if row.state in HOLDING else []
        if not requeue_runs(held, actor=actor_of(request), reason=reason):
            raise Conflict(f"Run {run} is with no driver now.", code="run_not_held")
        return Response(RunSerializer(find_run(None, run)).data)
