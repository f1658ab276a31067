"""Batches: many runs in one call, and how far they are."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiParameter, extend_schema
from pydantic import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from admission.api.bodies import BatchBody, LooseBatchBody, LooseItem
from admission.api.principals import acting_tenant, actor_of, scope_of
from admission.api.reading import COUNTED_LIST, COUNTED_ONE, count_states
from admission.api.runs import TENANT, VIEW
from admission.api.serializers import BatchAnswerSerializer, BatchSerializer, shown_submitted
from admission.models import Batch
from admission.services.submitting import Outcome, Submission, Submitted, submit_runs
from controlplane.api.parsing import BATCH_LIMIT_BYTES, parse_body
from controlplane.api.views import ListView, View
from controlplane.core.errors import NotFound, field_errors


def visible_batches(request: Request) -> QuerySet[Batch]:
    """What the caller may see."""
    tenant = scope_of(request, VIEW)
    batches = Batch.objects.select_related("tenant")
    return batches if tenant is None else batches.filter(tenant=tenant)


class BatchesView(ListView[Batch]):
    """All batches of the caller."""

    serializer_class = BatchSerializer
    filter_backends: list[Any] = []
    body_limit = BATCH_LIMIT_BYTES

    def get_queryset(self) -> QuerySet[Batch]:
        """`?name=` finds one by its name."""
        batches = visible_batches(self.request)
        name = self.request.query_params.get("name")
        return batches if name is None else batches.filter(name=name.replace("\x00", "")[:200])

    def paginate_queryset(self, queryset: Any) -> list[Any]:
        """One page, counted in one statement."""
        page: Any = super().paginate_queryset(queryset)
        count_states(page, COUNTED_LIST)
        return list(page)

    @extend_schema(operation_id="batches_list", tags=["batches"], parameters=[OpenApiParameter("name", str)])
    def get(self, request: Request) -> Response:
        """List batches, newest first, each with its runs by state."""
        return self.listing()

    @extend_schema(
        operation_id="batches_submit",
        tags=["batches"],
        parameters=[TENANT],
        request=BatchBody,
        responses=BatchAnswerSerializer,
    )
    def post(self, request: Request) -> Response:
        """Submit up to 1,000 runs. A wrong one is answered as such and does not hinder the others."""
        tenant = acting_tenant(request, "admission.submit_run")
        body = parse_body(LooseBatchBody, request)
        outcomes: list[Submitted | None] = [None] * len(body.runs)
        submissions: dict[int, Submission] = {}
        for position, item in enumerate(body.runs):
            judged = _judge(item)
            if isinstance(judged, Submitted):
                outcomes[position] = judged
            else:
                submissions[position] = judged
        done = submit_runs(tenant, list(submissions.values()), actor=actor_of(request), batch=body.name)
        for position, outcome in zip(submissions, done, strict=True):
            outcomes[position] = outcome
        found = Batch.objects.filter(tenant=tenant, name=body.name).values_list("pk", flat=True).first()
        items = [shown_submitted(outcome) for outcome in outcomes if outcome is not None]
        return Response({"id": found, "name": body.name, "items": items, **_tally(outcomes)})


def _judge(item: Any) -> Submission | Submitted:
    try:
        loose = LooseItem.model_validate(item)
    except ValidationError as error:
        return Submitted(Outcome.INVALID, errors=field_errors(error))
    return Submission(loose.spec, loose.idempotency_key)


def _tally(outcomes: list[Submitted | None]) -> dict[str, int]:
    kinds = [outcome.outcome for outcome in outcomes if outcome is not None]
    created, existed = kinds.count(Outcome.CREATED), kinds.count(Outcome.EXISTED)
    return {"created": created, "existed": existed, "refused": len(kinds) - created - existed}


class BatchView(View):
    """One batch."""

    @extend_schema(operation_id="batches_read", tags=["batches"], responses=BatchSerializer)
    def get(self, request: Request, batch: int) -> Response:
        """A batch with its runs by state."""
        row: Any = visible_batches(request).filter(pk=batch).first()
        if row is None:
            raise NotFound(f"There is no batch {batch}.")
        count_states([row], COUNTED_ONE)
        return Response(BatchSerializer(row).data)
