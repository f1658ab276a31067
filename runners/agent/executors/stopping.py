"""How a container is asked to end, and then made to."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from runners.agent.executors.base import ExecutorError

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

KILL_PATIENCE_SECONDS = 10.0


class Stopping:
    """SIGTERM, grace, SIGKILL, patience: which step is due."""

    def __init__(self, kill: Callable[[str], None], grace: float) -> None:
        self._kill = kill
        self._steps = [("SIGTERM", grace)] if grace else []
        self._steps.append(("SIGKILL", KILL_PATIENCE_SECONDS))
        self.next: float | None = None

    def step(self, moment: float) -> bool:
        """Do what is due; True when there is nothing left to do but to remove by force."""
        if self.next is not None and moment < self.next:
            return False
        if not self._steps:
            return True
        signal, patience = self._steps.pop(0)
        try:
            self._kill(signal)
        except ExecutorError as error:
            log.warning("%s was not delivered: %s", signal, error)
        self.next = moment + patience
        return False
