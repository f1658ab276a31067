"""The view classes that the apps' views start from."""

from __future__ import annotations

from typing import Any, TypeVar

from django.db.models import Model
from drf_spectacular.utils import extend_schema
from rest_framework import generics
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.api.pagination import KeysetPagination
from controlplane.api.parsing import BODY_LIMIT_BYTES, StrictJSONParser
from controlplane.api.schema import ControlPlaneSchema
from controlplane.core.logs import unbind

Row = TypeVar("Row", bound=Model)


class View(APIView):
    """A view of the control plane: strict bodies, problem answers in the schema."""

    parser_classes = [StrictJSONParser]
    schema = ControlPlaneSchema()
    body_limit = BODY_LIMIT_BYTES

    def options(self, request: Any, *args: Any, **kwargs: Any) -> Response:
        """The methods; the schema says the rest. The framework's own answer looks for a row and for forms, which not
        every path has."""
        said = {"name": self.get_view_name(), "methods": self.allowed_methods}
        return Response(said, content_type="application/json")

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """Who called belongs to this request's log lines only; the thread serves others next."""
        unbind("tenant", "runner")
        return super().finalize_response(request, response, *args, **kwargs)


class ListView(View, generics.GenericAPIView[Row]):
    """A view that lists rows page by page; other methods are added as on `View`."""

    pagination_class: Any = KeysetPagination

    def listing(self) -> Response:
        """One filtered page, serialized."""
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset()))
        serializer = self.get_serializer(page, many=True)
        return self.get_paginated_response(serializer.data)


class UnknownPath(APIView):
    """Paths that do not exist answer with a problem too, not with a page."""

    authentication_classes = []
    permission_classes = []

    @extend_schema(exclude=True)
    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Any method."""
        return super().dispatch(request, *args, **kwargs)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Before the method is looked at, so that each answers the same."""
        raise NotFound(f"There is no {request.path} in this API.")
