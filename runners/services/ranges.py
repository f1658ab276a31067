"""Which bytes of a stored file an HTTP request asks for (RFC 9110: Range, If-Range, If-None-Match)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

# Eighteen digits: what is longer is no position in any file, and no number to be made of it.
_ONE = re.compile(r"bytes\s*=\s*([0-9]{0,18})\s*-\s*([0-9]{0,18})", re.IGNORECASE)
_LONGEST = 200


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes from `first` on, `length` of them."""

    first: int
    length: int


class NoSuchPart(Exception):
    """It begins behind the end of the file, which has `size` bytes."""

    def __init__(self, size: int) -> None:
        super().__init__(f"the file has {size} bytes, and the part asked for begins behind them")
        self.size = size


def asked_part(headers: Mapping[str, str], etag: str, size: int) -> Part | None:
    """The part that is asked for; None: all of it, also where several parts are asked for, or none that can be read.

    Raises NoSuchPart.
    """
    text = headers.get("Range", "").strip()
    found = _ONE.fullmatch(text) if len(text) <= _LONGEST else None
    condition = headers.get("If-Range")
    # Only this very file: with a date, or a weak or other tag, the parts would be of two files.
    if found is None or (condition is not None and condition.strip() != etag):
        return None
    first, last = found.groups()
    if not first:
        return _part(max(0, size - int(last)), size, min(int(last), size)) if last else None
    if last and int(last) < int(first):
        return None
    end = min(int(last), size - 1) if last else size - 1
    return _part(int(first), size, end - int(first) + 1)


def _part(first: int, size: int, length: int) -> Part:
    if length <= 0:
        raise NoSuchPart(size)
    return Part(first, length)


def is_known(headers: Mapping[str, str], etag: str) -> bool:
    """Whether the caller has it already."""
    tags = {tag.strip().removeprefix("W/") for tag in headers.get("If-None-Match", "").split(",")}
    return etag in tags or "*" in tags
