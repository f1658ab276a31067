"""`wharfinger logs`: output as it was written, and a word where some of it is missing."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from runners.cli.output import err, print_json
from runners.client import LogPart


def print_log(parts: Iterable[LogPart]) -> None:
    """Bytes on standard output, nothing else; what is missing, and where another attempt begins, on standard error."""
    last: LogPart | None = None
    for part in parts:
        if last is not None and part.attempt != last.attempt:
            _say_missing(last)
            err.print(f"[attempt {part.attempt}]")
        last = part
        sys.stdout.buffer.write(part.data)
        sys.stdout.buffer.flush()
    if last is not None:
        _say_missing(last)


def _say_missing(part: LogPart) -> None:
    if part.missing:
        hope = "they may yet come" if not part.finished else "they are lost"
        err.print(f"[{part.missing} bytes of output after byte {part.size} were not delivered; {hope}]")


def print_log_json(parts: Iterable[LogPart]) -> None:
    """One JSON object a piece; `text` with replacements where it is no UTF-8."""
    for part in parts:
        print_json(
            {
                "attempt": part.attempt,
                "text": part.data.decode(errors="replace"),
                "size": part.size,
                "finished": part.finished,
                "truncated": part.truncated,
                "missing": part.missing,
                "state": part.state,
            }
        )
