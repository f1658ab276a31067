"""Pages by key: a page costs the same wherever it stands, and nothing is counted."""

from __future__ import annotations

from typing import Any

from rest_framework.exceptions import ValidationError
from rest_framework.pagination import BasePagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param

DEFAULT_SIZE = 50
MAX_SIZE = 500
MAX_ID = 2**63 - 1


def whole_number(request: Request, name: str, default: int, most: int, least: int = 0) -> int:
    """A query parameter as a whole number in its range; anything else is a 400 that names it."""
    text = request.query_params.get(name)
    if text is None:
        return default
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 19 else -1
    if not least <= number <= most:
        raise ValidationError({name: f"must be a whole number from {least} to {most}"})
    return number


class KeysetPagination(BasePagination):
    """Newest first, on the id. `cursor` is where the page before ended; `next` holds the address of the following."""

    def paginate_queryset(self, queryset: Any, request: Request, view: Any | None = None) -> list[Any]:
        """One page, and whether there is another: asked for by one row more than shown."""
        size = whole_number(request, "limit", DEFAULT_SIZE, MAX_SIZE, least=1)
        cursor = whole_number(request, "cursor", 0, MAX_ID)
        if cursor:
            queryset = queryset.filter(pk__lt=cursor)
        found = list(queryset.order_by("-pk")[: size + 1])
        self._page: list[Any] = found[:size]
        self._next: str | None = None
        if len(found) > size:
            address = request.build_absolute_uri()
            self._next = replace_query_param(address, "cursor", str(self._page[-1].pk))
        return self._page

    def get_paginated_response(self, data: Any) -> Response:
        """`next` is null on the last page."""
        return Response({"next": self._next, "results": data})

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        """For OpenAPI."""
        return {
            "type": "object",
            "required": ["next", "results"],
            "properties": {
                "next": {"type": ["string", "null"], "format": "uri", "description": "The following page."},
                "results": schema,
            },
        }

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        """For OpenAPI."""
        size = {"type": "integer", "minimum": 1, "maximum": MAX_SIZE, "default": DEFAULT_SIZE}
        return [
            {"name": "cursor", "in": "query", "schema": {"type": "integer"}, "description": "From `next`."},
            {"name": "limit", "in": "query", "schema": size, "description": "Rows on a page."},
        ]
