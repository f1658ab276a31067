"""Errors as RFC 9457 problem documents: one shape for refusals, wrong input and failures.

Never a stack and never a secret: what was unexpected is logged under the request id, which the answer names.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.http import Http404
from rest_framework import exceptions
from rest_framework.response import Response

from controlplane.core.errors import Conflict, DomainError, IdempotencyMismatch, InvalidInput, NotFound, TryLater
from controlplane.core.sql import is_outage

log = logging.getLogger(__name__)

CONTENT_TYPE = "application/problem+json"
OUTAGE_RETRY_SECONDS = 2
_STATUS: dict[type[DomainError], int] = {
    InvalidInput: 400,
    NotFound: 404,
    Conflict: 409,
    IdempotencyMismatch: 422,
    TryLater: 429,
}


_OTHERS: list[tuple[tuple[type[Exception], ...], int, str, str]] = [
    ((Http404,), 404, "not_found", "There is no such thing here."),
    ((PermissionDenied,), 403, "permission_denied", "You may not do this."),
    ((SuspiciousOperation, RecursionError), 400, "malformed", "The request is malformed, or nested too deeply."),
]


class PreconditionFailed(exceptions.APIException):
    """What stands is not what the caller saw (`If-Match`)."""

    status_code = 412
    default_detail = "It has changed since you read it."
    default_code = "precondition_failed"


class BodyTooLarge(exceptions.APIException):
    """The body exceeds what this path takes."""

    status_code = 413
    default_code = "body_too_large"


class RangeNotSatisfiable(exceptions.APIException):
    """The asked bytes begin elsewhere than what is stored. `extra` is merged into the problem."""

    status_code = 416
    default_code = "offset"

    def __init__(self, detail: str, *, headers: Mapping[str, str] | None = None, **extra: object) -> None:
        super().__init__(detail)
        self.headers = headers or {}
        self.extra = extra


class Superseded(exceptions.APIException):
    """The run has moved on: another epoch, another driver, or an ending."""

    status_code = 409
    default_detail = "The run has moved on; stop working on it."
    default_code = "superseded"


class Unavailable(exceptions.APIException):
    """Not here, not now."""

    status_code = 503
    default_code = "unavailable"

    def __init__(self, detail: str, *, wait: float) -> None:
        super().__init__(detail)
        self.wait = wait


def exception_handler(error: Exception, context: Mapping[str, Any]) -> Response:
    """Any exception of a view, as a problem."""
    request = context.get("request")
    request_id = request.META.get("wharfinger.request_id", "") if request is not None else ""
    status, problem, headers = problem_of(error, request_id, path=getattr(request, "path", ""))
    return Response(problem, status=status, headers=headers, content_type=CONTENT_TYPE)


def problem_of(error: Exception, request_id: str, *, path: str) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Any exception as status, problem document and headers."""
    status, body, headers = _describe(error)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR and not isinstance(error, Unavailable):
        log.error("api.%s", body["code"], exc_info=error, extra={"path": path})
    problem = {
        "type": f"urn:wharfinger:problem:{body['code']}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        **body,
        "request_id": request_id,
    }
    return status, problem, headers


def _describe(error: Exception) -> tuple[int, dict[str, Any], dict[str, str]]:
    if isinstance(error, DomainError):
        return _of_domain(error)
    if isinstance(error, exceptions.APIException):
        return _of_framework(error)
    if is_outage(error):
        detail = "The database does not answer just now. Nothing is known about the effect; repeat the call."
        return 503, {"detail": detail, "code": "unavailable"}, {"Retry-After": str(OUTAGE_RETRY_SECONDS)}
    for kinds, status, code, detail in _OTHERS:
        if isinstance(error, kinds):
            return status, {"detail": detail, "code": code}, {}
    detail = "Something failed here that should not. It is logged under the request id."
    return 500, {"detail": detail, "code": "internal"}, {}


def _of_domain(error: DomainError) -> tuple[int, dict[str, Any], dict[str, str]]:
    status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 400)
    body: dict[str, Any] = {"detail": error.detail, "code": error.code}
    if error.hint:
        body["hint"] = error.hint
    if isinstance(error, InvalidInput) and error.errors:
        body["errors"] = error.errors
    headers = {"Retry-After": str(math.ceil(error.retry_after_seconds))} if isinstance(error, TryLater) else {}
    return status, body, headers


def _of_framework(error: exceptions.APIException) -> tuple[int, dict[str, Any], dict[str, str]]:
    headers = dict(getattr(error, "headers", {}))
    if header := getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = header
    if wait := getattr(error, "wait", None):
        headers["Retry-After"] = str(math.ceil(wait))
    if isinstance(error, exceptions.ValidationError):
        body: dict[str, Any] = {"detail": "The input is wrong.", "code": "invalid"}
        body["errors"] = list(_flatten(error.get_full_details(), ()))
        return error.status_code, body, headers
    codes = error.get_codes()
    code = codes if isinstance(codes, str) else error.default_code
    body = {"detail": str(error.detail), "code": code, **getattr(error, "extra", {})}
    return error.status_code, body, headers


def _flatten(details: Any, path: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """The framework's nested findings as field and sentence."""
    if isinstance(details, list):
        for position, item in enumerate(details):
            # A list of findings about one field, or of nested items.
            yield from _flatten(item, path if "message" in item else (*path, str(position)))
    elif "message" in details and "code" in details:
        yield {"field": ".".join(path), "error": str(details["message"])}
    else:
        for name, item in details.items():
            yield from _flatten(item, path if name == "non_field_errors" else (*path, str(name)))
