"""A tenant's quota, with the tag of what was seen: two operators cannot overwrite each other unknowingly."""

from __future__ import annotations

from collections.abc import Callable

from django.utils.http import parse_etags
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from admission.api.bodies import QuotaBody
from admission.api.principals import REASON, actor_of, reason_of, require, visible_tenant
from admission.api.serializers import QuotaSerializer
from admission.api.tenants import VIEW
from admission.models import Tenant
from admission.services import quotas as service
from admission.services.quotas import QuotaChange
from admission.services.tenants import get_tenant
from controlplane.api.parsing import parse_body
from controlplane.api.problems import PreconditionFailed
from controlplane.api.views import View
from controlplane.core.errors import Conflict

SET = "admission.set_quota"
IF_MATCH = OpenApiParameter("If-Match", str, "header", description="The ETag that you saw; another one standing: 412.")
DRY_RUN = OpenApiParameter("dry_run", bool, description="Say what it would meet; change nothing.")


def etag(limit: int | None) -> str:
    """The limit is all there is to see, so it is its own tag."""
    return f'"{"none" if limit is None else limit}"'


def _guarded(
    request: Request, now: int | None, change: Callable[[tuple[int | None] | None], QuotaChange]
) -> QuotaChange:
    """Change only what the caller saw. `now` only picks the tag; the service compares again under the row's lock."""
    given = request.headers.get("If-Match")
    expected: tuple[int | None] | None = None
    if given is not None and given.strip() != "*":
        if etag(now) not in parse_etags(given):
            raise PreconditionFailed(f"The quota is {now} now; its ETag is {etag(now)}.")
        expected = (now,)
    try:
        return change(expected)
    except Conflict as error:
        if error.code == "quota_changed":
            raise PreconditionFailed(error.detail) from error
        raise


def _answer(tenant: Tenant, change: QuotaChange, *, applied: bool = True, standing: int | None) -> Response:
    body = {
        "tenant": tenant.slug,
        "limit": change.after,
        "before": change.before,
        "in_flight": change.in_flight,
        "over": change.over,
        "sentence": change.sentence(),
        "applied": applied,
    }
    return Response(QuotaSerializer(body).data, headers={"ETag": etag(standing)})


class QuotaView(View):
    """The quota of one tenant."""

    @extend_schema(operation_id="quota_read", tags=["tenants"], responses=QuotaSerializer)
    def get(self, request: Request, slug: str) -> Response:
        """The limit (null: none), what is in flight, and its ETag."""
        tenant = visible_tenant(request, slug, VIEW)
        now = service.preview_quota(tenant, 0)
        return _answer(tenant, QuotaChange(now.before, now.before, now.in_flight), standing=now.before)

    @extend_schema(
        operation_id="quota_set",
        tags=["tenants"],
        parameters=[IF_MATCH, DRY_RUN],
        request=QuotaBody,
        responses=QuotaSerializer,
    )
    def put(self, request: Request, slug: str) -> Response:
        """Set the limit. Lowering it below what is in flight kills nothing and admits nothing until that drained."""
        require(request, SET)
        tenant = get_tenant(slug)
        body = parse_body(QuotaBody, request)
        seen = service.preview_quota(tenant, body.limit)
        if request.query_params.get("dry_run", "").lower() in ("1", "true", "yes"):
            return _answer(tenant, seen, applied=False, standing=seen.before)
        actor, reason = actor_of(request), reason_of(request, body.reason)
        change = _guarded(
            request,
            seen.before,
            lambda expected: service.set_quota(tenant, body.limit, actor=actor, reason=reason, expected=expected),
        )
        return _answer(tenant, change, standing=change.after)

    @extend_schema(
        operation_id="quota_remove", tags=["tenants"], parameters=[IF_MATCH, REASON], responses={200: QuotaSerializer}
    )
    def delete(self, request: Request, slug: str) -> Response:
        """Remove the limit; runs are not touched."""
        require(request, SET)
        tenant = get_tenant(slug)
        actor, reason = actor_of(request), reason_of(request)
        now = service.preview_quota(tenant, 0)

        def remove(expected: tuple[int | None] | None) -> QuotaChange:
            removed = service.remove_quota(tenant, actor=actor, reason=reason, expected=expected)
            return removed or QuotaChange(None, None, now.in_flight)

        return _answer(tenant, _guarded(request, now.before, remove), standing=None)
