"""Secrets out of a stream of output, also where a value is cut in two between chunks (rule Q13)."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING
from urllib.parse import quote, quote_plus

if TYPE_CHECKING:
    from collections.abc import Iterable

MASK = b"[masked]"
# Shorter values would mask ordinary text, and tell by that what they are.
SHORTEST = 4
# A line of a key of many lines; "}" or "-----" alone would mask half of all output.
SHORTEST_LINE = 8


def spellings(value: str) -> set[bytes]:
    """A value as it is likely to be printed: itself, each long line of it, and as JSON, a URL and base64 write it."""
    raw = value.encode()
    written = {value, value.strip(), json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    written |= {quote(value, safe=""), quote(value), quote_plus(value)}
    encoded = {base64.b64encode(raw), base64.urlsafe_b64encode(raw)}
    found = {text.encode() for text in written} | encoded | {text.rstrip(b"=") for text in encoded}
    found = {text for text in found if len(text) >= SHORTEST}
    lines = {line.strip().encode() for line in value.splitlines()} if len(value.splitlines()) > 1 else set()
    return found | {line for line in lines if len(line) >= SHORTEST_LINE}


class Masker:
    """Replaces each value; holds back as many bytes as could be the beginning of one."""

    def __init__(self, values: Iterable[str]) -> None:
        found = {spelling for value in values for spelling in spellings(value)}
        self._secrets = sorted(found, key=len, reverse=True)
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """What may be shown now."""
        if not self._secrets:
            return data
        data = self._held + data
        shown: list[bytes] = []
        position = 0
        keep = self._undecided(data, 0)
        for start, stop in self.spans(data):
            # Beginning later than something longer that may still come: left for the next time.
            if start > keep or (start == keep and self._may_grow(data[start:])):
                break
            shown += [data[position:start], MASK]
            position = stop
            keep = self._undecided(data, position)
        self._held = data[keep:]
        return b"".join(shown) + data[position:keep]

    def end(self) -> bytes:
        """What was held back: the stream is over, so it is no longer value's beginning."""
        held, self._held = self._held, b""
        return self.whole(held)

    def whole(self, data: bytes) -> bytes:
        """Data of which nothing more comes."""
        shown: list[bytes] = []
        position = 0
        for start, stop in self.spans(data):
            shown += [data[position:start], MASK]
            position = stop
        return b"".join(shown) + data[position:]

    def text(self, text: str) -> str:
        """A whole text, such as an error message."""
        if not self._secrets:
            return text
        return self.whole(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def spans(self, data: bytes) -> list[tuple[int, int]]:
        """Where values stand, the first and longest of overlapping ones. One search each: C's are far faster than a
        regular expression of many."""
        found: list[tuple[int, int]] = []
        for secret in self._secrets:
            place = data.find(secret)
            while place >= 0:
                found.append((place, place + len(secret)))
                place = data.find(secret, place + 1)
        found.sort(key=lambda span: (span[0], -span[1]))
        chosen: list[tuple[int, int]] = []
        for span in found:
            if not chosen or span[0] >= chosen[-1][1]:
                chosen.append(span)
            elif span[1] > chosen[-1][1]:
                # Overlapping: both are secret, all of both is hidden.
                chosen[-1] = (chosen[-1][0], span[1])
        return chosen

    @property
    def longest(self) -> int:
        """Bytes of the longest spelling; 0: there is nothing to mask."""
        return len(self._secrets[0]) if self._secrets else 0

    def _may_grow(self, rest: bytes) -> bool:
        return any(len(secret) > len(rest) and secret.startswith(rest) for secret in self._secrets)

    def _undecided(self, data: bytes, start: int) -> int:
        """Where the longest end of `data` begins that is the beginning of a longer value; its length if none is."""
        first = len(data)
        for secret in self._secrets:
            first = min(first, _beginning(data, secret, max(start, len(data) - len(secret) + 1), first))
        return first


def _beginning(data: bytes, secret: bytes, start: int, stop: int) -> int:
    """The first place from `start` on, before `stop`, from which all the rest of `data` is how `secret` begins."""
    # Many bytes at once where there is room: single ones are found everywhere.
    place = data.find(secret[:SHORTEST], start)
    while 0 <= place < stop:
        if secret.startswith(data[place:]):
            return place
        place = data.find(secret[:SHORTEST], place + 1)
    for near in range(max(start, len(data) - SHORTEST + 1), stop):
        if secret.startswith(data[near:]):
            return near
    return stop
