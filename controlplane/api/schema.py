"""OpenAPI: credentials, the problem answers of every operation, and the schema's own addresses."""

from __future__ import annotations

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import ResolvedComponent

from controlplane.api.problems import CONTENT_TYPE

PROBLEM = {
    "type": "object",
    "description": "RFC 9457 problem document.",
    "required": ["type", "title", "status", "detail", "code", "request_id"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What happened and why."},
        "hint": {"type": "string", "description": "What to do about it."},
        "code": {"type": "string", "description": "Stable; branch on this."},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["field", "error"],
                "properties": {"field": {"type": "string"}, "error": {"type": "string"}},
            },
        },
        "request_id": {"type": "string"},
    },
}


class ControlPlaneSchema(AutoSchema):
    """The generated operation, plus the one shape of all its errors."""

    def get_operation(self, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
        """Add the default answer."""
        operation: dict[str, Any] | None = super().get_operation(*args, **kwargs)
        if operation is None:
            return None
        problem = ResolvedComponent("Problem", ResolvedComponent.SCHEMA, schema=PROBLEM, object="Problem")
        self.registry.register_on_missing(problem)
        content = {CONTENT_TYPE: {"schema": problem.ref}}
        operation["responses"].setdefault("default", {"description": "Refused, wrong or failed.", "content": content})
        return operation

    def _is_list_view(self, serializer: Any = None) -> bool:
        """The generator takes a `get` without an action for that of one row; a list here answers pages."""
        listing = getattr(self.view, "pagination_class", None) is not None and self.method == "GET"
        return listing or bool(super()._is_list_view(serializer))


class TokenScheme(OpenApiAuthenticationExtension):
    """Tenants and operators."""

    target_class = "admission.api.authentication.TokenAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, Any]:
        """For OpenAPI."""
        return {"type": "http", "scheme": "bearer", "description": "A tenant's (wht_) or an operator's (who_) token."}


class RunnerScheme(OpenApiAuthenticationExtension):
    """Runners."""

    target_class = "runners.api.authentication.RunnerAuthentication"
    name = "runner"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, Any]:
        """For OpenAPI."""
        return {"type": "http", "scheme": "bearer", "description": "A runner's token (whr_), from its enrolment."}
