"""Artifacts over REST: brought by the runner that holds the run, listed and fetched by whoever may see it."""

from __future__ import annotations

import re
from typing import Any

from django.http.response import HttpResponseBase
from django.urls import reverse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.exceptions import APIException, ValidationError
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from admission.api.principals import scope_of
from controlplane.api.pagination import MAX_ID, whole_number
from controlplane.api.parsing import declared_length
from controlplane.api.problems import BodyTooLarge, RangeNotSatisfiable, Superseded
from controlplane.api.views import View
from controlplane.core.conf import conf
from controlplane.core.errors import DomainError
from runners.api import bodies
from runners.api.protocol import JOB_TOKEN, RunnerView
from runners.services import artifacts
from runners.services.kept import Kept, download, read_kept
from runners.services.logs import HoldSuperseded
from runners.services.ranges import NoSuchPart

SHA256 = re.compile(r"[0-9a-f]{64}")
DISCARD_BYTES = 1 << 20
ATTEMPT = OpenApiParameter("attempt", int, description="Which attempt; without it the latest.")


class StorageUnavailable(APIException):
    """The bytes could not be stored now, or did not arrive whole."""

    status_code = 503
    default_code = "storage_unavailable"
    wait = 2


class ArtifactSerializer(serializers.Serializer[Any]):
    """One kept file."""

    name = serializers.CharField()
    size = serializers.IntegerField()
    sha256 = serializers.CharField()
    content_type = serializers.CharField()
    stored_at = serializers.DateTimeField()
    url = serializers.URLField()


class ArtifactsSerializer(serializers.Serializer[Any]):
    """What one attempt kept."""

    run = serializers.IntegerField()
    attempt = serializers.IntegerField()
    state = serializers.CharField(help_text="The run's state: while it is not a final one, more may come.")
    kept_until = serializers.DateTimeField(allow_null=True, help_text="They are deleted then. null: not ended yet.")
    log_kept_until = serializers.DateTimeField(allow_null=True, help_text="The same for the run's output.")
    results = ArtifactSerializer(many=True)


class StoredAnswer(bodies.Answer):
    """The file is stored, now or before."""

    stored: bool


class AnyRenderer(BaseRenderer):
    """For negotiation only: the view answers bytes itself."""

    media_type = "*/*"
    format = "bytes"

    def render(self, data: object, accepted_media_type: str | None = None, renderer_context: object = None) -> bytes:
        """Never asked for a file."""
        return JSONRenderer().render(data)


def _kept(request: Request, run: int) -> Kept:
    tenant = scope_of(request, "admission.view_run")
    attempt = whole_number(request, "attempt", 0, 2**31 - 1)
    return read_kept(run, attempt=attempt or None, tenant_id=tenant.pk if tenant is not None else None)


class RunArtifactsView(View):
    """What a run kept."""

    @extend_schema(operation_id="runs_artifacts", tags=["runs"], parameters=[ATTEMPT], responses=ArtifactsSerializer)
    def get(self, request: Request, run: int) -> Response:
        """List the files of one attempt, with until when they are kept."""
        kept = _kept(request, run)
        listed = [
            {
                "name": one.name,
                "size": one.size,
                "sha256": bytes(one.sha256).hex(),
                "content_type": one.content_type,
                "stored_at": one.stored_at,
                "url": f"{request.build_absolute_uri(reverse('run-artifact', args=[run, one.name]))}"
                f"?attempt={kept.attempt}",
            }
            for one in kept.files
        ]
        facts = {name: getattr(kept, name) for name in ("run", "attempt", "state", "kept_until", "log_kept_until")}
        return Response(ArtifactsSerializer({**facts, "results": listed}).data)


class RunArtifactView(View):
    """One file that a run kept."""

    renderer_classes = [AnyRenderer, JSONRenderer]

    @extend_schema(
        operation_id="runs_artifact",
        tags=["runs"],
        parameters=[
            ATTEMPT,
            OpenApiParameter("name", str, "path", description="As it is listed."),
            OpenApiParameter("Range", str, "header", description="One part, as bytes=FIRST-LAST, FIRST- or -LAST."),
            OpenApiParameter("If-Range", str, "header", description="The ETag of what the part is of; else all."),
            OpenApiParameter("If-None-Match", str, "header", description="The ETag of what the caller has."),
        ],
        responses={
            (200, "application/octet-stream"): OpenApiTypes.BINARY,
            (206, "application/octet-stream"): OpenApiTypes.BINARY,
            304: OpenApiResponse(description="The caller has it."),
            416: OpenApiResponse(description="The part begins behind the end; Content-Range says how long it is."),
        },
    )
    def get(self, request: Request, run: int, name: str) -> HttpResponseBase:
        """Fetch it, or a part of it, as an attachment. `Artifact-Sha256` says what all its bytes must sum up to."""
        try:
            return download(_kept(request, run), name, request.headers)
        except NoSuchPart as error:
            whole = {"Content-Range": f"bytes */{error.size}"}
            raise RangeNotSatisfiable(str(error), headers=whole, stored=error.size) from error


class ArtifactUploadView(RunnerView):
    """Storing one file of a run."""

    @extend_schema(
        operation_id="runner_artifact_store",
        tags=["runner"],
        parameters=[
            JOB_TOKEN,
            OpenApiParameter("epoch", int, required=True),
            OpenApiParameter("name", str, required=True, description="Relative to the working directory."),
            OpenApiParameter(
                "Artifact-Sha256", str, "header", required=True, description="Of the whole body, in hex."
            ),
        ],
        request={"application/octet-stream": OpenApiTypes.BINARY},
        responses=StoredAnswer,
    )
    def post(self, request: Request, run: int) -> Response:
        """Store it; the same one again is fine. 413: a cap refuses it; 503: repeat it; 409: the run has moved on."""
        if "epoch" not in request.query_params:
            raise ValidationError({"epoch": "give ?epoch="})
        epoch = whole_number(request, "epoch", 0, MAX_ID)
        self.prove_job(request, run, epoch)
        announced = _announced(request)
        stream = _Body(request)
        try:
            artifacts.store_artifact(self.driver, run, epoch, announced, stream)
        except HoldSuperseded as error:
            stream.discard()
            raise Superseded from error
        except artifacts.ArtifactTooBig as error:
            stream.discard()
            raise BodyTooLarge(str(error), code=error.code) from error
        except (artifacts.StorageFailed, artifacts.UploadBroken) as error:
            raise StorageUnavailable(str(error)) from error
        except DomainError:
            stream.discard()
            raise
        stream.discard()
        return Response({"stored": True, **self.intervals()})


def _announced(request: Request) -> artifacts.Announced:
    # Without a length nothing can be read: that is the empty file, and anything else does not sum up.
    size = declared_length(request) or 0
    digest = request.headers.get("Artifact-Sha256", "")
    if not SHA256.fullmatch(digest):
        raise ValidationError({"Artifact-Sha256": "the SHA-256 of the file as 64 hexadecimal digits"})
    return artifacts.Announced(request.query_params.get("name", ""), size, bytes.fromhex(digest))


class _Body:
    """The request's body as it arrives; nothing of it is kept in memory."""

    def __init__(self, request: Request) -> None:
        self._stream: Any = request.stream
        self._most = conf().artifact_file_bytes

    def read(self, size: int = -1) -> bytes:
        """The next bytes; fewer than asked for only at the end, or when the connection broke."""
        return b"" if self._stream is None else bytes(self._stream.read(size))

    def discard(self) -> None:
        """Read what is left: a client that still sends would see a broken connection instead of our answer."""
        while self._most > 0 and (piece := self.read(DISCARD_BYTES)):
            self._most -= len(piece)
