"""Storing output: bytes that begin where the stored log ends, plain or gzipped."""

from __future__ import annotations

import zlib
from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.exceptions import ParseError, UnsupportedMediaType, ValidationError
from rest_framework.parsers import BaseParser
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.pagination import whole_number
from controlplane.api.parsing import MIB, declared_length, read_bounded
from controlplane.api.problems import BodyTooLarge, RangeNotSatisfiable, Superseded
from runners.api import bodies
from runners.api.protocol import JOB_TOKEN, RunnerView
from runners.services import logs

MAX_CHUNK_BYTES = MIB
GZIP_WINDOW = 16 + zlib.MAX_WBITS


class BytesParser(BaseParser):
    """Leaves the body to the view, whatever it is called."""

    media_type = "*/*"

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        """Bounded, like every body, and bounded again once it is expanded."""
        request = (parser_context or {})["request"]
        data = read_bounded(stream, declared_length(request), MAX_CHUNK_BYTES)
        encoding = request.META.get("HTTP_CONTENT_ENCODING", "").strip().lower()
        if encoding in ("", "identity"):
            return data
        if encoding not in ("gzip", "x-gzip"):
            raise UnsupportedMediaType(encoding, "Send the bytes as they are, or with Content-Encoding: gzip.")
        return expanded(data)


def expanded(data: bytes) -> bytes:
    """What was gzipped, as one member. Never more than a chunk is made of it, whatever it claims to hold.

    Raises:
        BodyTooLarge: it holds more.
        ParseError: it is no whole gzip member, or something follows it.
    """
    inflater = zlib.decompressobj(GZIP_WINDOW)
    try:
        found = inflater.decompress(data, MAX_CHUNK_BYTES + 1)
    except zlib.error as error:
        raise ParseError(f"The body is not gzip: {error}.") from error
    if len(found) > MAX_CHUNK_BYTES:
        raise BodyTooLarge(f"The body holds more than the {MAX_CHUNK_BYTES} bytes that this path takes.")
    if not inflater.eof or inflater.unused_data:
        raise ParseError("The body is not one whole gzip member.")
    return found


class LogAppendView(RunnerView):
    """Storing output."""

    parser_classes = [BytesParser]

    @extend_schema(
        operation_id="runner_log_append",
        tags=["runner"],
        parameters=[
            JOB_TOKEN,
            OpenApiParameter("epoch", int, required=True),
            OpenApiParameter("offset", int, required=True, description="Where these bytes begin."),
            OpenApiParameter("Content-Encoding", str, "header", description="gzip, or nothing."),
        ],
        request={"application/octet-stream": OpenApiTypes.BINARY},
        responses=bodies.LogAnswer,
    )
    def post(self, request: Request, run: int) -> Response:
        """Append, also for some minutes after the reported end. 416 with `stored`: the log ends elsewhere, go on
        from there."""
        if not {"epoch", "offset"} <= set(request.query_params):
            raise ValidationError({"offset": "give ?epoch= and ?offset="})
        epoch = whole_number(request, "epoch", 0, bodies.MAX_ID)
        offset = whole_number(request, "offset", 0, bodies.MAX_ID)
        self.prove_job(request, run, epoch)
        body: Any = request.data
        data = body if isinstance(body, bytes) else b""
        try:
            done = logs.append_log(self.driver, run, epoch, offset, data)
        except logs.OffsetMismatch as error:
            raise RangeNotSatisfiable(str(error), stored=error.stored) from error
        except logs.HoldSuperseded as error:
            raise Superseded from error
        verdict = "cancel" if done.cancel else "ok"
        return Response({"stored": done.stored, "verdict": verdict, **self.intervals()})
