"""What a process believes of itself, by a clock of its own that may only make it stop earlier (rules G5, L3)."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass


def now() -> float:
    """Uptime in seconds, suspended time counted: a machine that slept believes nothing when it wakes."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Belief:
    """A term, and until when its holder may act on it. `until` counts from before the query was sent.

    A child that was forked off carries its parent's memory, not its lease: `pid` tells them apart (rule L10).
    """

    term: int
    sent_at: float
    until: float
    pid: int

    @classmethod
    def from_query(cls, term: int, sent_at: float, seconds: float) -> Belief:
        """After an accepted query that was sent at `sent_at`."""
        return cls(term, sent_at, sent_at + seconds, os.getpid())

    def holds(self) -> bool:
        """Whether this process may still act under the term."""
        return self.pid == os.getpid() and now() < self.until
