"""Secrets out of a stream of output, also where a value is cut in two between chunks (rule Q13)."""

from __future__ import annotations

import re
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
        data = self._pattern.sub(MASK, self._held + data)
        keep = self._undecided(data)
        self._held = data[len(data) - keep :]
        return data[: len(data) - keep]

    def end(self) -> bytes:
        """What was held back: the stream is over, so it was no secret."""
        held, self._held = self._held, b""
        return held

    def _undecided(self, data: bytes) -> int:
        for length in range(min(self._longest - 1, len(data)), 0, -1):
            if data[-length:] in self._prefixes:
                return length
        return 0
