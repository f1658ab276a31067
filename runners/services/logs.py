"""The stored output of attempts: appended by their drivers, read by whoever may see the run."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from admission.drivers import Driver
from admission.states import TERMINAL
from controlplane.core.conf import conf
from controlplane.core.errors import NotFound
from controlplane.core.sql import execute, one, rows
from runners import sql
from runners.services.hiding import hide_seam, maskers, starred

MAX_READ_BYTES = 1 << 20


class HoldSuperseded(Exception):
    """The run has moved on: another epoch, another driver, or an ending. Nothing was stored."""


class OffsetMismatch(Exception):
    """The stored log ends elsewhere than the sent bytes begin. Nothing was stored."""

    def __init__(self, stored: int) -> None:
        super().__init__(f"the stored log ends at byte {stored}")
        self.stored = stored


@dataclass(frozen=True, slots=True)
class Appended:
    """`stored` is where the sender goes on; `cancel` asks it to stop the run."""

    stored: int
    cancel: bool
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Bytes of one attempt's log from an offset, and where the log stands."""

    data: bytes
    attempt: int
    size: int
    state: str
    truncated: bool
    attempt_ended: bool
    missing: int = 0
    """Bytes at its end that its driver could not deliver, by its own account."""
    more_may_come: bool = False
    """They may yet come: the attempt ended a short while ago."""
    kept_until: datetime | None = None
    """When it is deleted; None: its run has not ended."""

    @property
    def run_ended(self) -> bool:
        """No other attempt follows."""
        return self.state in TERMINAL


def cut_mark(cap: int) -> bytes:
    """What stands in the log where the rest was cut."""
    return f"\n[wharfinger: output cut at {cap} bytes]\n".encode()


def append_log(driver: Driver, run: int, epoch: int, offset: int, data: bytes) -> Appended:
    """Store bytes that begin at `offset`, up to the cap; what is beyond it is cut, visibly and once.

    Also for a while after the end that this driver reported: the rest of the log may come late. Secrets of the run
    are hidden once more, also where one is cut in two by the border to what came before.

    Raises:
        HoldSuperseded: the run is not held under this epoch by this driver, and was not ended by it just now.
        OffsetMismatch: the log ends elsewhere; go on from there.
    """
    masker = maskers.of(run)
    if masker is None:
        return _append(driver, run, epoch, offset, data)
    with transaction.atomic():
        done = _append(driver, run, epoch, offset, starred(masker, data))
        hide_seam(masker, run, done.attempt, offset)
    return done


def _append(driver: Driver, run: int, epoch: int, offset: int, data: bytes) -> Appended:
    kept, cut = _within_cap(offset, data)
    hold = {"run": run, "epoch": epoch, **driver.identity()}
    late = conf().late_log_seconds
    row = one(sql.APPEND_LOG, {**hold, "offset": offset, "data": kept, "cut": cut, "late": late})
    if row is None:
        raise HoldSuperseded(f"run {run} is not held under epoch {epoch}")
    end = offset + len(data)
    if row["size"] is not None:
        return Appended(max(row["size"], end) if cut else row["size"], row["cancel"], row["attempt"])
    stands = one(sql.READ_LOG_END, {"run": run, "attempt": row["attempt"]})
    if stands is None:
        raise HoldSuperseded(f"the attempt of run {run} is gone")
    if stands["cut"]:
        # Nothing more is kept of this log. All that comes counts as taken, or its sender would offer it for ever.
        return Appended(max(stands["size"], end), row["cancel"], row["attempt"])
    raise OffsetMismatch(stands["size"])


def note_log_ends(driver: Driver, ends: Sequence[tuple[int, int, int]]) -> None:
    """Where logs would end, as (run, epoch, size), of attempts that this driver ended without delivering all of it."""
    for run, epoch, size in ends:
        execute(sql.NOTE_LOG_END, {"run": run, "epoch": epoch, "size": size, **driver.identity()})


def _within_cap(offset: int, data: bytes) -> tuple[bytes, bool]:
    cap = conf().log_cap_bytes
    room = max(cap - offset, 0)
    if len(data) <= room:
        return data, False
    return data[:room] + cut_mark(cap), True


def read_log(
    run: int, *, attempt: int | None = None, offset: int = 0, limit: int = MAX_READ_BYTES, tenant_id: int | None = None
) -> LogPiece:
    """Up to `limit` bytes from `offset` of an attempt's log, the latest one's unless named.

    Raises NotFound for a run, or attempt, that is not there for this tenant.
    """
    asked = {"run": run, "attempt": attempt, "tenant_id": tenant_id}
    kept = {"late": conf().late_log_seconds, "days": conf().log_retention_days}
    state = one(sql.READ_LOG_STATE, asked | kept)
    if state is None:
        raise NotFound(f"There is no run {run}.")
    if state["number"] is None and attempt is not None:
        raise NotFound(f"Run {run} has no attempt {attempt}.")
    number = state["number"] or 0
    data = _read_bytes(run, number, offset, min(limit, MAX_READ_BYTES)) if state["size"] > offset else b""
    return LogPiece(
        data=data,
        attempt=number,
        size=state["size"],
        state=state["state"],
        truncated=state["truncated"],
        attempt_ended=(state["released"] or state["state"] in TERMINAL) and not state["more_may_come"],
        missing=state["missing"],
        more_may_come=state["more_may_come"],
        kept_until=state["kept_until"],
    )


def stored_digest(run: int, attempt: int) -> tuple[int, bytes] | None:
    """Size and SHA-256 of an attempt's log, for who reads the same output again. None: it was cut, no more is kept.

    Read in pieces, while nobody appends: its former driver is dead, and its new one is the caller.
    """
    seen, size = hashlib.sha256(), 0
    while True:
        piece = read_log(run, attempt=attempt, offset=size)
        if piece.truncated:
            return None
        if not piece.data:
            return size, seen.digest()
        seen.update(piece.data)
        size += len(piece.data)


def _read_bytes(run: int, attempt: int, offset: int, limit: int) -> bytes:
    parameters = {"run": run, "attempt": attempt, "offset": offset, "limit": limit}
    chunks = rows(sql.READ_LOG, parameters)
    if not chunks:
        return b""
    skip = max(offset - chunks[0]["start"], 0)
    return b"".join(bytes(chunk["data"]) for chunk in chunks)[skip : skip + limit]
