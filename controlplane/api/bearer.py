"""The Authorization header; whose token it is, an app judges."""

from __future__ import annotations

from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

MAX_TOKEN = 200


def bearer(request: Request) -> str | None:
    """The token of the Authorization header; None without one. Malformed ones are refused, never ignored."""
    return bearer_of(request.META.get("HTTP_AUTHORIZATION", ""))


def bearer_of(header: str) -> str | None:
    """The same, of the header itself."""
    if not header:
        return None
    scheme, _, token = header.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or len(token) > MAX_TOKEN or not token.isascii():
        raise AuthenticationFailed("Send the header 'Authorization: Bearer <token>'.", code="malformed_token")
    return token
