"""What a run kept, as its page shows it, and the files themselves."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from admission.models import Run
from controlplane.admin_base import render
from controlplane.core.errors import NotFound
from runners.services.kept import download, read_kept
from runners.services.ranges import NoSuchPart

SEES_FILES = "admission.view_run"


def kept_context(run: Run) -> dict[str, Any]:
    """For the panel: the latest attempt's files, and what the specification wanted."""
    kept = read_kept(run.pk)
    spec = run.spec if isinstance(run.spec, dict) else {}
    query = urlencode({"attempt": kept.attempt})
    files = [
        {
            "row": one,
            "sha256": bytes(one.sha256).hex(),
            "stored": render.moment(one.stored_at),
            "url": f"{reverse('admin:run_artifact', args=[run.pk, one.name])}?{query}",
        }
        for one in kept.files
    ]
    return {"kept": kept, "files": files, "wanted": spec.get("artifacts") or [], "attempt": kept.attempt}


@require_GET
@never_cache
def run_artifact(request: HttpRequest, run: int, name: str) -> HttpResponseBase:
    """One kept file, as an attachment that no browser interprets."""
    if not request.user.has_perm(SEES_FILES):
        raise PermissionDenied(f"This needs the permission {SEES_FILES}.")
    attempt = request.GET.get("attempt", "")
    if attempt and not (attempt.isascii() and attempt.isdigit() and len(attempt) < 10):
        raise Http404("There is no such attempt.")
    try:
        return download(read_kept(run, attempt=int(attempt) if attempt else None), name, request.headers)
    except NotFound as error:
        raise Http404(str(error)) from error
    except NoSuchPart as error:
        return HttpResponse(status=416, headers={"Content-Range": f"bytes */{error.size}"})
