"""Request bodies: bounded, strict JSON that PostgreSQL can store, then pydantic."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import IO, Any, TypeVar

from pydantic import BaseModel, ValidationError
from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser
from rest_framework.request import Request

from controlplane.api.problems import BodyTooLarge
from controlplane.core.errors import InvalidInput, field_errors

MIB = 1 << 20
BODY_LIMIT_BYTES = 4 * MIB
BATCH_LIMIT_BYTES = 32 * MIB

Model = TypeVar("Model", bound=BaseModel)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is out of range")
    return number


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _refuse_unstorable(value: Any) -> None:
    """U+0000 has no place in a text column, half a surrogate pair none in UTF-8 (encoding it raises)."""
    written = json.dumps(value, ensure_ascii=False).encode()
    if rb"\u0000" in written.replace(rb"\\", b""):
        raise ValueError("text must not contain the character U+0000")


def read_bounded(stream: IO[bytes], declared: int | None, limit: int) -> bytes:
    """The body, or BodyTooLarge without reading on: neither a wrong length nor its absence may fill the memory."""
    if declared is not None and declared > limit:
        raise BodyTooLarge(f"The body has {declared} bytes; this path takes {limit}.")
    data = stream.read(limit + 1)
    if len(data) > limit:
        raise BodyTooLarge(f"The body is larger than the {limit} bytes that this path takes.")
    return data


def declared_length(request: Any) -> int | None:
    """`Content-Length` as a number; absent or malformed counts as unknown."""
    text = request.META.get("CONTENT_LENGTH") or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def decode_json(data: bytes) -> Any:
    """Strict JSON. What PostgreSQL or UTF-8 cannot hold is refused here, so that nothing behind fails on it."""
    try:
        # Decoded here: left to itself the module would guess UTF-16 and 32 too.
        text = data.decode()
        value = json.loads(text, parse_float=_finite, parse_constant=_no_constant)
        if "\\u" in text:
            _refuse_unstorable(value)
    except UnicodeError as error:
        raise ParseError("The body is not valid UTF-8 text, or holds half of a surrogate pair.") from error
    except RecursionError as error:
        raise ParseError("The body is nested too deeply.") from error
    except ValueError as error:
        raise ParseError(f"The body is not valid JSON: {error}") from error
    return value


class StrictJSONParser(BaseParser):
    """JSON, bounded by the view's `body_limit`."""

    media_type = "application/json"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        """Read and decode."""
        context = parser_context or {}
        limit = getattr(context.get("view"), "body_limit", BODY_LIMIT_BYTES)
        data = read_bounded(stream, declared_length(context["request"]), limit)
        return decode_json(data)


def parse_body(model: type[Model], request: Request) -> Model:
    """The body as `model`; InvalidInput names each wrong field."""
    try:
        return model.model_validate(request.data)
    except ValidationError as error:
        raise InvalidInput("The input is wrong.", errors=field_errors(error)) from error
