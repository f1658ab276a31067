"""The live addresses of the admin: GET only, never cached, behind `admin_view` and the view permission."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from admission.models import Tenant
from admission.services.readings import read_highest_concurrency
from controlplane.core.errors import NotFound
from controlplane.fleet.logs import LogText, read_text, whole_log
from controlplane.fleet.selectors import Fleet, read_fleet

SEES_FLEET = "admission.view_run"
REFRESH_SECONDS = 2


def fleet_context(request: HttpRequest) -> dict[str, Any]:
    """For the page and for the fragment: the same numbers in the same template."""
    fleet: Fleet | None = read_fleet() if request.user.has_perm(SEES_FLEET) else None
    return {"fleet": fleet, "refresh_seconds": REFRESH_SECONDS}


@require_GET
@never_cache
def fleet_fragment(request: HttpRequest) -> HttpResponse:
    """The fleet page's live part."""
    _require(request, SEES_FLEET)
    return render(request, "console/fleet_live.html", fleet_context(request))


@require_GET
@never_cache
def run_log(request: HttpRequest, run: int) -> JsonResponse:
    """A piece of the output as JSON: the tail, or what follows byte `after`."""
    return JsonResponse(asdict(_text(request, run, _integer(request, "after"))))


@require_GET
@never_cache
def run_log_download(request: HttpRequest, run: int) -> StreamingHttpResponse:
    """The whole stored output of one attempt, as plain text that no browser interprets."""
    attempt = _text(request, run, None).attempt
    response = StreamingHttpResponse(whole_log(run, attempt), content_type="text/plain; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="run-{run}-attempt-{attempt}.log"'
    return response


def _text(request: HttpRequest, run: int, after: int | None) -> LogText:
    _require(request, SEES_FLEET)
    try:
        return read_text(run, _integer(request, "attempt"), after)
    except NotFound as error:
        raise Http404(str(error)) from error


@require_GET
@never_cache
def tenant_peak(request: HttpRequest, tenant: int) -> JsonResponse:
    """The highest concurrency ever, from the attempts' history: too long a walk to hold up the tenant's page."""
    _require(request, "admission.view_tenant")
    if not Tenant.objects.filter(pk=tenant).exists():
        raise Http404("There is no such tenant.")
    return JsonResponse({"text": f"{read_highest_concurrency(tenant):,}"})


def _require(request: HttpRequest, permission: str) -> None:
    if not request.user.has_perm(permission):
        raise PermissionDenied(f"This needs the permission {permission}.")


def _integer(request: HttpRequest, name: str) -> int | None:
    text = request.GET.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise Http404(f"{name} must be a whole number.")
    return int(text)
