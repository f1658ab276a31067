"""What signals asked of a process, told to the thread that waits for it.

Not a `threading.Event`: a handler runs on the main thread between any two of its steps, also between those in which
that thread holds the event's own lock. Setting the event would then wait for itself, and the process would hear no
signal any more but SIGKILL. A `SimpleQueue` is made to be put into from there.
"""

from __future__ import annotations

from queue import Empty, SimpleQueue


class Signalled:
    """Set once, by a signal handler or by anybody; waited for by any number of threads."""

    def __init__(self) -> None:
        self._is_set = False
        self._told: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """From now on."""
        self._is_set = True
        self._told.put(None)

    def is_set(self) -> bool:
        """Whether it was asked for."""
        return self._is_set

    def wait(self, seconds: float | None = None) -> bool:
        """Until it is asked for, or for so long; whether it is."""
        if not self._is_set:
            try:
                self._told.get(timeout=seconds)
            except Empty:
                return self._is_set
            # For whoever else waits.
            self._told.put(None)
        return self._is_set
