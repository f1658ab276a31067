"""Removals under way, each in a thread of its own: one that the daemon refuses holds up none of the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from admission.physical.errors import PhysicalError
from runners.agent.executors.base import ExecutorError

if TYPE_CHECKING:
    from runners.agent.events import OnEvent


class Removals:
    """Begins each once, remembers what failed until it is tried again or nobody asks for it any more."""

    def __init__(self, tell: OnEvent) -> None:
        self._tell = tell
        self._busy: set[str] = set()
        self._failed: dict[str, str] = {}
        self._lock = threading.Lock()

    def begin(self, key: str, work: Callable[[], None]) -> None:
        """Do it beside. Without effect while the same is under way."""
        with self._lock:
            if key in self._busy:
                return
            self._busy.add(key)
        threading.Thread(target=self._do, args=[key, work], name=f"remove-{key[:12]}", daemon=True).start()

    def failures(self, among: Collection[str]) -> dict[str, str]:
        """Why these could not be removed when it was last tried."""
        with self._lock:
            return {key: why for key, why in self._failed.items() if key in among}

    def keep(self, outstanding: Collection[str]) -> None:
        """Failures of others are settled: somebody else removed them."""
        with self._lock:
            self._failed = {key: why for key, why in self._failed.items() if key in outstanding}

    def _do(self, key: str, work: Callable[[], None]) -> None:
        try:
            work()
        except (PhysicalError, ExecutorError) as error:
            # Its capacity stays taken; the next pass tries again.
            with self._lock:
                self._failed[key] = str(error)
            self._tell("remove_failed", what=key, error=str(error))
        else:
            with self._lock:
                self._failed.pop(key, None)
        finally:
            with self._lock:
                self._busy.discard(key)
