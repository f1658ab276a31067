"""The output of an attempt as a page shows it: a tail, what follows an offset, or all of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from runners.services.logs import read_log

TAIL_BYTES = 64 << 10
DOWNLOAD_BYTES = 1 << 20
_LONGEST_CHARACTER = 4


@dataclass(frozen=True, slots=True)
class LogText:
    """Bytes `start` to `next` of one attempt's output, decoded, cut between characters."""

    attempt: int
    start: int
    next: int
    size: int
    text: str
    truncated: bool
    ended: bool
    missing: int
    """Bytes after the stored ones that were not delivered; they may yet come while it has not ended."""


def read_text(run: int, attempt: int | None, after: int | None) -> LogText:
    """At most `TAIL_BYTES` from byte `after` on, or the last ones. Raises NotFound."""
    if after is None:
        size = read_log(run, attempt=attempt, limit=0).size
        start = max(size - TAIL_BYTES, 0)
    else:
        start = after
    piece = read_log(run, attempt=attempt, offset=start, limit=TAIL_BYTES)
    data = piece.data
    if after is None and start:
        # The tail begins with a line, not inside one or inside a character.
        cut = data.find(b"\n") + 1
        start, data = start + cut, data[cut:]
    if not piece.attempt_ended:
        data = data[: len(data) - _unfinished(data)]
    return LogText(
        attempt=piece.attempt,
        start=start,
        next=start + len(data),
        size=piece.size,
        text=data.decode(errors="replace"),
        truncated=piece.truncated,
        ended=piece.attempt_ended,
        missing=piece.missing,
    )


def whole_log(run: int, attempt: int) -> Iterator[bytes]:
    """All that is stored, a piece at a time, for a download."""
    offset = 0
    while data := read_log(run, attempt=attempt, offset=offset, limit=DOWNLOAD_BYTES).data:
        yield data
        offset += len(data)


def _unfinished(data: bytes) -> int:
    """How many bytes at the end begin a character whose rest has not come yet."""
    for back in range(1, min(_LONGEST_CHARACTER, len(data) + 1)):
        byte = data[-back]
        if byte < 0x80:
            return 0
        if byte >= 0xC0:
            need = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if back < need else 0
    return 0
