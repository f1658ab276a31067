"""A request id on every request and answer, and in every log line between."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from controlplane.core.logs import bind, unbind

HEADER = "X-Request-ID"
_ACCEPTED = re.compile(r"[A-Za-z0-9._-]{1,100}")


class RequestIdMiddleware:
    """Takes a well-formed id from the caller, or makes one."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Serve one request under its id; the thread serves others next, so the id is unbound again."""
        given = request.headers.get(HEADER, "")
        request_id = given if _ACCEPTED.fullmatch(given) else uuid.uuid4().hex
        request.META["wharfinger.request_id"] = request_id
        bind(request_id=request_id)
        try:
            response = self.get_response(request)
        finally:
            unbind("request_id")
        response[HEADER] = request_id
        return response
