"""A thread that does one thing again and again, survives its failures visibly, and can be woken."""

from __future__ import annotations

import threading
import traceback
from typing import TYPE_CHECKING

from runners.agent.backoff import Backoff, jittered
from runners.agent.clock import now
from runners.agent.control import ControlUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from runners.agent.events import OnEvent

FOREVER = 3600.0


class Loop:
    """Calls `tick`, which answers how long to wait (or until woken). A failure is told and retried with back-off."""

    def __init__(self, name: str, tick: Callable[[], float], on_event: OnEvent, at_end: Callable[[], None]) -> None:
        self.name = name
        # When its tick began, or is to begin.
        self._due = now()
        self._tick = tick
        self._on_event = on_event
        self._at_end = at_end
        self._backoff = Backoff(0.1, 5.0)
        self._wake = threading.Event()
        self._stopping = False
        # A daemon thread: a control plane that never answers must not keep a stopped process alive.
        self._thread = threading.Thread(target=self._run, name=f"driver-{name}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wake(self) -> None:
        """Tick now instead of at the end of the wait."""
        self._due = min(self._due, now())
        self._wake.set()

    def overdue_seconds(self) -> float:
        """For how long its tick has been under way, or should have begun.

        A wait that the tick asked for does not count, however long: a driver whose slots are all taken has nothing to
        claim for hours, and is well.
        """
        return max(0.0, now() - self._due)

    def stop(self) -> None:
        """End after the current tick; does not wait for it."""
        self._stopping = True
        self._wake.set()

    def join(self, seconds: float) -> None:
        """Wait for the end."""
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def _run(self) -> None:
        try:
            while not self._stopping:
                wait = self._once()
                self._due = now() + wait
                self._wake.wait(wait)
                self._wake.clear()
        finally:
            self._at_end()

    def _once(self) -> float:
        self._due = now()
        try:
            wait = self._tick()
        except ControlUnavailable as error:
            self._on_event("control_unavailable", loop=self.name, error=str(error))
            return max(self._backoff.delay(), jittered(error.retry_after or 0.0))
        except Exception as error:  # noqa: BLE001 - told with its stack; a dead loop would strand every run
            self._on_event("loop_failed", loop=self.name, error=repr(error), stack=traceback.format_exc())
            return self._backoff.delay()
        self._backoff.reset()
        return wait
