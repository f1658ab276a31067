"""The local clock: monotonic, and counting the time a machine was suspended (rule G5)."""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Seconds since some fixed point. Only differences mean anything; it may only make a holder stop earlier."""
    return time.clock_gettime(_CLOCK)
