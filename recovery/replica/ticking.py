"""A loop of its own thread: a tick, a pause, for ever. A failing tick is logged, and the next comes all the same."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable

from django.db import close_old_connections, connection

log = logging.getLogger(__name__)

JITTER_MILLISECONDS = 500


def cryptographic_jitter() -> float:
    """0 to 500 ms from the operating system's source: two replicas of one image, started together, must not agree."""
    return secrets.randbelow(JITTER_MILLISECONDS + 1) / 1000


def no_jitter() -> float:
    """For loops that touch only what is this process's own."""
    return 0.0


class Ticking:
    """Calls `tick` every `seconds` plus fresh jitter; a daemon thread, so it never delays a shutdown."""

    def __init__(
        self, name: str, tick: Callable[[], None], seconds: float, *, jitter: Callable[[], float] = no_jitter
    ) -> None:
        self.name = name
        self._tick = tick
        self._seconds = seconds
        self._jitter = jitter
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin; the first tick comes after one interval."""
        self._thread.start()

    def stop(self) -> None:
        """No further tick. Returns at once."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(self._seconds + self._jitter()):
            # A connection that a restart of the database broke is replaced here; else the loop would fail for ever.
            close_old_connections()
            try:
                self._tick()
            except Exception:
                log.exception("loop.failed", extra={"loop": self.name})
        connection.close()
