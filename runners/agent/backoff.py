"""Waiting between attempts: exponential, capped, with full jitter so that a fleet does not return in step."""

from __future__ import annotations

import random

_random = random.SystemRandom()


class Backoff:
    """The delays of one series of attempts."""

    def __init__(self, first: float = 0.1, most: float = 10.0) -> None:
        self._first = first
        self._most = most
        self._next = first

    def delay(self) -> float:
        """The next wait in seconds, between half of the step and the step."""
        step = self._next
        self._next = min(self._most, step * 2)
        return _random.uniform(step / 2, step)

    def reset(self) -> None:
        """Begin again at the first step, after a success."""
        self._next = self._first


def jittered(interval: float) -> float:
    """`interval` within 20 per cent."""
    return _random.uniform(0.8 * interval, 1.2 * interval)
