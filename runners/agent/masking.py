"""Secrets out of a stream of output, also where a value is cut in two between chunks (rule Q13)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

MASK = b"[masked]"
# Shorter values would mask ordinary text, and tell by that what they are.
SHORTEST = 4


class Masker:
    """Replaces each value; holds back as many bytes as could be the beginning of one."""

    def __init__(self, values: Iterable[str]) -> None:
        secrets = sorted({v.encode() for v in values if len(v.encode()) >= SHORTEST}, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(re.escape(s) for s in secrets)) if secrets else None
        self._prefixes = {s[:n] for s in secrets for n in range(1, len(s))}
        self._longest = len(secrets[0]) if secrets else 0
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """What may be shown now."""
        if self._pattern is None:
            return data
        data = self._held + data
        shown: list[bytes] = []
        position = 0
        for found in self._pattern.finditer(data):
            if found.end() == len(data) and found.group() in self._prefixes:
                break  # A longer value may begin with this one.
            shown += [data[position : found.start()], MASK]
            position = found.end()
        rest = data[position:]
        keep = self._undecided(rest)
        self._held = rest[len(rest) - keep :]
        return b"".join(shown) + rest[: len(rest) - keep]

    def end(self) -> bytes:
        """What was held back: the stream is over, so it is no longer value's beginning."""
        held, self._held = self._held, b""
        return self._pattern.sub(MASK, held) if self._pattern is not None else held

    def _undecided(self, data: bytes) -> int:
        for length in range(min(self._longest - 1, len(data)), 0, -1):
            if data[-length:] in self._prefixes:
                return length
        return 0
