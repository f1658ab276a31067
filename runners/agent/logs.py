"""The output of one run on its way to the control plane: bounded, in order, never lost without a visible mark."""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from runners.agent.control import ControlUnavailable, LogOffset
from runners.agent.masking import Masker

CAP_BYTES = 16 * 1024 * 1024
CHUNK_BYTES = 256 * 1024
MOST_STUCK = 3
SEAM_MARK = (
    "another driver went on from here; what it read of the output before differs from what is stored, so lines around "
    "here may be missing, doubled or in another order"
)

Send = Callable[[int, bytes], int]
"""Stores bytes at an offset, returns the stored size; raises `LogOffset` when the stored log ends elsewhere."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What a predecessor stored of the same output: its size, and the SHA-256 of it."""

    size: int
    digest: bytes


class _Seam:
    """Compares what is read again with what is stored of it."""

    def __init__(self, stored: Stored) -> None:
        self.left = stored.size
        self._digest = stored.digest
        self._seen = hashlib.sha256()

    def take(self, data: bytes) -> bool:
        """More of what was stored already; False when that is over and was not the same."""
        self._seen.update(data)
        self.left -= len(data)
        return self.left > 0 or self._seen.digest() == self._digest


class LogBuffer:
    """What was written and is not yet stored. `write` and `close` come from one thread, `flush` from one at a time.

    Memory is bounded by the cap: what is beyond it is read and dropped, so that the command never blocks on a full
    pipe, and said once in the log itself.
    """

    def __init__(
        self, secrets: Iterable[str] = (), cap: int = CAP_BYTES, wake: Callable[[], None] | None = None
    ) -> None:
        self._masker = Masker(secrets)
        self._cap = cap
        self._wake = wake
        self._parts: deque[bytes] = deque()
        self._waiting = 0
        self._taken = 0
        self._offset = 0
        self._skip = 0
        self._cut = False
        self._seam: _Seam | None = None
        self._lock = threading.Lock()
        self._flushing = threading.Lock()

    @classmethod
    def resumed(cls, offset: int, output: bytes) -> LogBuffer:
        """What was masked, capped and not delivered in an earlier life."""
        made = cls(cap=len(output))
        made._offset = offset
        made.write(output)
        return made

    @property
    def waiting(self) -> int:
        """Bytes that are not stored yet."""
        return self._waiting

    @property
    def end(self) -> int:
        """Where the log ends once all that waits is stored."""
        with self._lock:
            return self._offset + self._waiting

    def hide(self, text: str) -> str:
        """A text of our own about this run, such as an error message, with its secrets masked."""
        return self._masker.text(text)

    def go_on_after(self, stored: Stored) -> None:
        """Before anything is written: a predecessor stored so much of the same output. That is not sent again, but
        compared: a daemon's copy may have lost its beginning, or have two streams in another order."""
        if stored.size:
            self._offset = self._skip = stored.size
            self._seam = _Seam(stored)

    def write(self, data: bytes) -> None:
        """Take output. Never blocks for long, never raises."""
        self._show(self._masker.feed(data))

    def close(self) -> None:
        """The output is over: what the masker held back belongs to it."""
        self._show(self._masker.end())
        if self._seam is not None:
            # Less than was stored, so all of it was skipped; the mark is not.
            self._seam = None
            with self._lock:
                self._skip = 0
            self.note(SEAM_MARK)

    def _show(self, data: bytes) -> None:
        if self._seam is not None:
            before, data = data[: self._seam.left], data[self._seam.left :]
            self._take(before)
            same = self._seam.take(before)
            if self._seam.left > 0:
                return
            self._seam = None
            if not same:
                self.note(SEAM_MARK)
        self._take(data)

    def note(self, text: str) -> None:
        """A line of our own in the log, counted like output."""
        self._take(f"[wharfinger: {self.hide(text)}]\n".encode())

    def undelivered(self) -> tuple[int, bytes]:
        """Where the stored log ends as far as we know, and what follows it."""
        with self._lock:
            return self._offset, b"".join(self._parts)

    def discard(self) -> None:
        """Drop what waits and what is to come: nobody takes it any more."""
        with self._lock:
            self._parts.clear()
            self._waiting = 0
            self._taken, self._cut = self._cap, True

    def _take(self, data: bytes) -> None:
        with self._lock:
            before = self._waiting
            room = self._cap - self._taken
            self._taken += min(len(data), room)
            self._append(data[:room])
            if len(data) > room and not self._cut:
                self._cut = True
                self._append(f"\n[wharfinger: output cut at {self._cap} bytes]\n".encode())
            ripe = before < CHUNK_BYTES <= self._waiting
        if ripe and self._wake is not None:
            self._wake()

    def _append(self, data: bytes) -> None:
        skipped = min(self._skip, len(data))
        self._skip -= skipped
        data = data[skipped:]
        if data:
            self._parts.append(data)
            self._waiting += len(data)

    def flush(self, send: Send) -> None:
        """Send all that waits, in chunks. What `send` raises leaves the rest in place for the next time."""
        with self._flushing:
            stuck = 0
            while chunk := self._front():
                before = self._offset
                try:
                    stored = send(before, chunk)
                except LogOffset as elsewhere:
                    self._resume(elsewhere.stored)
                else:
                    with self._lock:
                        self._drop(max(0, stored - before))
                stuck = stuck + 1 if self._offset <= before else 0
                if stuck >= MOST_STUCK:
                    raise ControlUnavailable(f"the log does not move on from byte {before}")

    def _front(self) -> bytes:
        with self._lock:
            return self._peek()

    def _peek(self) -> bytes:
        """Up to one chunk from the front, joined in place."""
        if not self._parts:
            return b""
        joined = [self._parts.popleft()]
        size = len(joined[0])
        while self._parts and size < CHUNK_BYTES:
            joined.append(self._parts.popleft())
            size += len(joined[-1])
        front = b"".join(joined)
        if size > CHUNK_BYTES:
            self._parts.appendleft(front[CHUNK_BYTES:])
            front = front[:CHUNK_BYTES]
        self._parts.appendleft(front)
        return front

    def _resume(self, stored: int) -> None:
        """The stored log is ahead (an answer was lost, or a predecessor wrote it) or behind (its end was lost)."""
        with self._lock:
            if stored >= self._offset:
                self._drop(stored - self._offset)
                return
            missing = self._offset - stored
            mark = f"\n[wharfinger: {missing} bytes of output are missing here]\n".encode()
            self._offset = stored
            self._parts.appendleft(mark)
            self._waiting += len(mark)

    def _drop(self, count: int) -> None:
        """Forget `count` stored bytes, those too that are yet to come."""
        self._offset += count
        while count and self._parts:
            part = self._parts.popleft()
            taken = min(count, len(part))
            count -= taken
            self._waiting -= taken
            if taken < len(part):
                self._parts.appendleft(part[taken:])
        self._skip += count
