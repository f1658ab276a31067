"""Reading the log of a run, whole, in parts, or while it grows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request

from admission.api.principals import scope_of
from controlplane.api.pagination import MAX_ID, whole_number
from controlplane.api.problems import RangeNotSatisfiable
from controlplane.api.views import View
from runners.services.logs import MAX_READ_BYTES, LogPiece, read_log
from runners.services.ranges import NoSuchPart, Part, asked_part

NO_ETAG = ""
"""A log has none, for it grows: `If-Range` never holds, and all of it is answered."""
HEADERS = {
    "Log-Size": "Bytes stored.",
    "Log-Attempt": "Whose log this is.",
    "Log-Finished": "true: nothing will be added to this attempt's log.",
    "Log-Truncated": "true: cut at the size cap.",
    "Log-Missing": "Bytes at its end that were not delivered; they may yet come while Log-Finished is false.",
    "Log-Kept-Until": "Once the run has ended: when its output is deleted.",
    "Run-State": "State of the run; while it is not a final one, another attempt may follow.",
}


class TextRenderer(BaseRenderer):
    """For negotiation only: the view answers bytes itself."""

    media_type = "text/plain"
    format = "text"

    def render(self, data: object, accepted_media_type: str | None = None, renderer_context: object = None) -> bytes:
        """Never asked for a log."""
        return JSONRenderer().render(data)


class RunLogsView(View):
    """The log of one run."""

    renderer_classes = [TextRenderer, JSONRenderer]

    @extend_schema(
        operation_id="runs_logs",
        tags=["runs"],
        parameters=[
            OpenApiParameter("attempt", int, description="Which attempt; without it the latest."),
            OpenApiParameter("offset", int, description="First byte wanted. Beyond the end: an empty answer."),
            OpenApiParameter("limit", int, description=f"Bytes at most, up to {MAX_READ_BYTES}."),
            OpenApiParameter("Range", str, "header", description="bytes=N-, N-M or -N, instead of offset."),
            *[
                OpenApiParameter(name, str, "header", response=[200, 206], description=text)
                for name, text in HEADERS.items()
            ],
        ],
        responses={
            (200, "text/plain"): OpenApiTypes.STR,
            (206, "text/plain"): OpenApiTypes.STR,
            416: OpenApiResponse(description="The part begins behind the end; Content-Range says how long it is."),
        },
    )
    def get(self, request: Request, run: int) -> HttpResponse:
        """Output as it was written. To follow, ask again from offset + received until `Log-Finished`."""
        tenant = scope_of(request, "admission.view_run")
        attempt = whole_number(request, "attempt", 0, 2**31 - 1)
        offset = whole_number(request, "offset", 0, MAX_ID)
        limit = whole_number(request, "limit", MAX_READ_BYTES, MAX_READ_BYTES, least=1)
        read = partial(read_log, run, attempt=attempt or None, tenant_id=tenant.pk if tenant is not None else None)
        part = _asked_part(request, read)
        if part is None:
            return _answer(read(offset=offset, limit=limit), offset, ranged=False)
        piece = read(offset=part.first, limit=min(part.length, limit))
        if not piece.data:
            raise _unsatisfiable(0, "Its output is deleted: it was kept for as long as it had to be.")
        return _answer(piece, part.first, ranged=True)


def _asked_part(request: Request, read: Callable[..., LogPiece]) -> Part | None:
    """What `Range` asks for; None: nothing, or nothing that can be read, which is ignored (RFC 9110, 14.2)."""
    if "Range" not in request.headers:
        return None
    size = read(offset=MAX_ID).size
    try:
        return asked_part(request.headers, NO_ETAG, size)
    except NoSuchPart as error:
        raise _unsatisfiable(size, f"The log has {size} bytes.") from error


def _unsatisfiable(size: int, why: str) -> RangeNotSatisfiable:
    return RangeNotSatisfiable(why, headers={"Content-Range": f"bytes */{size}"}, size=size)


def _answer(piece: LogPiece, offset: int, *, ranged: bool) -> HttpResponse:
    response = HttpResponse(piece.data, content_type="text/plain; charset=utf-8", status=206 if ranged else 200)
    response["Log-Size"] = str(piece.size)
    response["Log-Attempt"] = str(piece.attempt)
    response["Log-Finished"] = _flag(piece.attempt_ended)
    response["Log-Truncated"] = _flag(piece.truncated)
    response["Log-Missing"] = str(piece.missing)
    response["Run-State"] = piece.state
    if piece.kept_until is not None:
        response["Log-Kept-Until"] = piece.kept_until.isoformat()
    response["Accept-Ranges"] = "bytes"
    if ranged:
        response["Content-Range"] = f"bytes {offset}-{offset + len(piece.data) - 1}/{piece.size}"
    return response


def _flag(value: bool) -> str:
    return "true" if value else "false"
