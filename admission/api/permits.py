"""Permits as a service: other systems hold a tenant's slots under their own ids (rule A23)."""

from __future__ import annotations

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response

from admission.api.bodies import ForceReleaseBody, PermitBody, RenewBody
from admission.api.filters import PermitFilter
from admission.api.principals import actor_of, require, scope_of, tenant_of
from admission.api.reading import list_permits
from admission.api.serializers import (
    ClaimSerializer,
    ForcedSerializer,
    PermitSerializer,
    ReleaseSerializer,
    RenewedSerializer,
)
from admission.models import Permit, Tenant
from admission.services import force_release as forcing
from admission.services import permits as service
from admission.services.permits import OUTSIDE_PREFIX, ClaimOutcome
from admission.services.tenants import get_tenant
from controlplane.api.parsing import parse_body
from controlplane.api.views import ListView, View
from controlplane.core.errors import NotFound, TryLater

RETRY_SECONDS = 1


def _tenant(request: Request) -> Tenant:
    tenant = tenant_of(request)
    if tenant is None:
        raise PermissionDenied("Permits are claimed, renewed and released with the tenant's own token.")
    return tenant


def holder_of(tenant: Tenant, permit: str) -> str:
    """The tenant stands in the holder: two tenants may use the same id."""
    return f"{OUTSIDE_PREFIX}{tenant.pk}:{permit}"


class PermitsView(ListView[Permit]):
    """Permits of the caller, of runs and of outside systems."""

    serializer_class = PermitSerializer
    filterset_class = PermitFilter
    queryset = Permit.objects.none()  # says only what the rows are: for the schema, where nobody calls

    def get_queryset(self) -> QuerySet[Permit]:
        """What the caller may see."""
        return list_permits(scope_of(self.request, "admission.view_permit"))

    @extend_schema(operation_id="permits_list", tags=["permits"])
    def get(self, request: Request) -> Response:
        """List permits, newest first, with what is left of each lease."""
        return self.listing()

    @extend_schema(
        operation_id="permits_claim",
        tags=["permits"],
        filters=False,
        request=PermitBody,
        responses={201: ClaimSerializer, 200: ClaimSerializer},
    )
    def post(self, request: Request) -> Response:
        """Claim: 201 granted, 200 held already by this id, 409 this id with another weight, 429 no slot is free."""
        tenant = _tenant(request)
        body = parse_body(PermitBody, request)
        claim = service.claim_permit(
            holder_of(tenant, body.id),
            tenant_id=tenant.pk,
            weight=body.weight,
            lapse_seconds=body.lapse_seconds,
            holder_name=getattr(request.user, "token", ""),
        )
        if claim.outcome is ClaimOutcome.REFUSED:
            raise TryLater(
                f"Tenant {tenant.slug!r} has no {body.weight} slots free.",
                retry_after_seconds=RETRY_SECONDS,
                code="no_slot",
            )
        answer = {"id": body.id, "outcome": claim.outcome.value, "lapse_seconds": claim.lapse_seconds}
        return Response(ClaimSerializer(answer).data, 201 if claim.outcome is ClaimOutcome.GRANTED else 200)


class PermitView(View):
    """One permit of an outside system."""

    @extend_schema(operation_id="permits_release", tags=["permits"], responses={200: ReleaseSerializer})
    def delete(self, request: Request, permit: str) -> Response:
        """Release. `released` is false when it was not held: a repeat, or it lapsed."""
        tenant = _tenant(request)
        released = service.release_permit(holder_of(tenant, permit), tenant_id=tenant.pk)
        return Response({"id": permit, "released": released})


class PermitRenewView(View):
    """Renewing one permit of an outside system."""

    @extend_schema(operation_id="permits_renew", tags=["permits"], request=None, responses=ClaimSerializer)
    def post(self, request: Request, permit: str) -> Response:
        """Renew the lease; 404 when it is gone: its work must stop."""
        tenant = _tenant(request)
        holder = holder_of(tenant, permit)
        lapse = service.renew_permits([holder], tenant_id=tenant.pk).get(holder)
        if lapse is None:
            raise NotFound(f"Permit {permit!r} is not held any more.", hint="Stop its work, or claim anew.")
        return Response({"id": permit, "outcome": "renewed", "lapse_seconds": lapse})


class PermitRenewalsView(View):
    """Renewing many permits of an outside system at once."""

    @extend_schema(operation_id="permits_renew_many", tags=["permits"], request=RenewBody, responses=RenewedSerializer)
    def post(self, request: Request) -> Response:
        """Renew up to 1,000 leases in one statement. What is in `lost` is not held any more: its work must stop."""
        tenant = _tenant(request)
        holders = {holder_of(tenant, permit): permit for permit in parse_body(RenewBody, request).ids}
        kept = service.renew_permits(list(holders), tenant_id=tenant.pk)
        renewed = {holders[holder]: lapse for holder, lapse in kept.items()}
        return Response({"renewed": renewed, "lost": [p for p in holders.values() if p not in renewed]})


class PermitForceReleaseView(View):
    """Taking a right from whoever holds it."""

    @extend_schema(
        operation_id="permits_force_release",
        tags=["permits"],
        request=ForceReleaseBody,
        responses={200: ForcedSerializer},
    )
    def post(self, request: Request, permit: str) -> Response:
        """For operators: a run's permit comes free with a takeover of the run, another system's by its id.

        409: it is a run's, and strict fencing is on.
        """
        require(request, "admission.force_release_permit")
        body = parse_body(ForceReleaseBody, request)
        tenant = get_tenant(body.tenant) if body.tenant is not None else None
        permits = forcing.find_permits(permit, tenant)
        forced = forcing.force_release(permits, actor=actor_of(request), reason=body.reason)
        answer = {"runs_taken": len(forced.taken), "released": len(forced.released), "gone": forced.gone}
        return Response(ForcedSerializer(answer).data)
