"""Docker's framing of stdout and stderr on one connection, undone incrementally."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_HEADER = struct.Struct(">BxxxL")


class Frames:
    """Feeds payload bytes on, in the order in which the daemon sent them; holds no more than a header back."""

    def __init__(self, deliver: Callable[[bytes], None]) -> None:
        self._deliver = deliver
        self._header = b""
        self._left = 0

    def feed(self, data: bytes) -> None:
        """Take bytes as they came from the connection."""
        position = 0
        parts: list[bytes] = []
        while position < len(data):
            if not self._left:
                position = self._read_header(data, position)
                continue
            part = data[position : position + self._left]
            self._left -= len(part)
            position += len(part)
            parts.append(part)
        if parts:
            self._deliver(b"".join(parts))

    def _read_header(self, data: bytes, position: int) -> int:
        missing = _HEADER.size - len(self._header)
        self._header += data[position : position + missing]
        if len(self._header) == _HEADER.size:
            self._left = _HEADER.unpack(self._header)[1]
            self._header = b""
        return position + missing
