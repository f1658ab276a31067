"""Secrets out of what is stored of a run, whatever its driver did before (rule Q13).

The driver masks first, with the values that it was given; this is the second line, for a driver that does not. Sizes
stay as they are, for offsets are the driver's: each byte of a value becomes an asterisk.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from time import monotonic

from controlplane.core.sql import execute, rows
from runners import kept_sql as sql
from runners.agent.masking import Masker
from runners.agent.registry import hidden_parts
from runners.services.sealing import Unreadable, unseal

log = logging.getLogger(__name__)

KNOWN_RUNS = 2000
KNOWN_SECONDS = 30.0
STAR = b"*"


class _Maskers:
    """One masker for each run of late, None for one that names no secret; read anew after a while.

    Kept because a log arrives in many pieces. The values are in this process's memory meanwhile, as they are whenever
    a claim is answered.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[int, tuple[float, Masker | None]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, run: int) -> Masker | None:
        """The masker of a run."""
        with self._lock:
            found = self._known.get(run)
        if found is not None and monotonic() - found[0] < KNOWN_SECONDS:
            return found[1]
        masker = _read(run)
        with self._lock:
            self._known[run] = (monotonic(), masker)
            self._known.move_to_end(run)
            while len(self._known) > KNOWN_RUNS:
                self._known.popitem(last=False)
        return masker

    def forget(self) -> None:
        """Read again at the next question; for tests."""
        with self._lock:
            self._known.clear()


maskers = _Maskers()


def _read(run: int) -> Masker | None:
    values = hidden_values(run)
    return Masker(values) if values else None


def hidden_values(run: int) -> list[str]:
    """What the output of a run must not tell: what its secrets are, and what they were before their last change."""
    values: list[str] = []
    for row in rows(sql.READ_HIDDEN, {"run": run}):
        for sealed in (row["value"], row["previous"]):
            if sealed is None:
                continue
            try:
                value = unseal(row["tenant_id"], row["name"], bytes(sealed))
                values += hidden_parts(value) if row["for_registry"] else [value]
            except Unreadable as error:
                # It was not given to the run either, unless a key was taken away since: said, for an operator.
                log.warning("secrets.not_masked", extra={"run": run, "why": str(error)})
    return values


def hidden_text(run: int, text: str) -> str:
    """A result's reason or detail, without what the run must not tell."""
    masker = maskers.of(run) if text else None
    return text if masker is None else masker.text(text)


def starred(masker: Masker, data: bytes) -> bytes:
    """The same number of bytes, the values in them hidden."""
    spans = masker.spans(data)
    if not spans:
        return data
    changed = bytearray(data)
    for start, stop in spans:
        changed[start:stop] = STAR * (stop - start)
    return bytes(changed)


def hide_seam(masker: Masker, run: int, attempt: int, border: int) -> None:
    """Hide a value that was cut in two by a border between chunks. In the transaction of the append behind it."""
    reach = masker.longest - 1
    window = {"run": run, "attempt": attempt, "first": max(border - reach, 0), "stop": border + reach}
    chunks = rows(sql.READ_CHUNKS_AROUND, window)
    if not chunks:
        return
    base = chunks[0]["start"]
    joined = b"".join(bytes(chunk["data"]) for chunk in chunks)
    masked = starred(masker, joined)
    for chunk in chunks if masked != joined else ():
        place = chunk["start"] - base
        piece = masked[place : place + len(chunk["data"])]
        if piece != bytes(chunk["data"]):
            execute(sql.REWRITE_CHUNK, {"run": run, "attempt": attempt, "start": chunk["start"], "data": piece})
