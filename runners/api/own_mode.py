"""What a machine wishes of itself."""

from __future__ import annotations

from typing import Literal

from drf_spectacular.utils import extend_schema
from pydantic import Field
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.parsing import parse_body
from runners.api import bodies
from runners.api.protocol import RunnerView
from runners.services.own_mode import wish


class WishBody(bodies.Message):
    """What the calling runner is to do from now on."""

    verb: Literal["pause", "resume"]
    reason: str = Field(default="", max_length=1000)


class WishAnswer(bodies.Answer):
    """`changed` false: it was so already. The mode in this answer is the one before."""

    changed: bool


class WishView(RunnerView):
    """The calling runner's own pause."""

    @extend_schema(operation_id="runner_wish", tags=["runner"], request=WishBody, responses=WishAnswer)
    def post(self, request: Request) -> Response:
        """Pause the caller, or take back its own pause or drain; an operator's stays."""
        body = parse_body(WishBody, request)
        request_id = request.META.get("wharfinger.request_id", "")
        changed = wish(
            self.runner, body.verb, reason=body.reason or f"asked on {self.runner.name}", request_id=request_id
        )
        return Response({"changed": changed, **self.intervals()})
