"""What an incarnation declared dead still executes, looked after by its successor in the same process (rule R12)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from recovery.replica.holds import HoldKeeper
from runners.agent.driver import Driver

log = logging.getLogger(__name__)

OUTLIVES_ITS_DRIVER: Final = frozenset({"docker"})
"""Executors whose executions a successor may adopt (rule R10). Those of others are stopped at once: whatever they do
from here on is lost work, and would only run beside the next attempt."""


@dataclass(slots=True)
class Remains:
    """The old driver, which writes nothing any more, and its keeper, which still reads."""

    driver: Driver
    keeper: HoldKeeper
    executor: str

    def begin(self) -> None:
        """Right after the declaration was noticed."""
        self.driver.drain(0.0)
        if self.executor not in OUTLIVES_ITS_DRIVER:
            self.keeper.abandon()

    def tick(self) -> bool:
        """Stop what the ledger shows as moved on. True: nothing is left."""
        return self.keeper.follow()

    def end(self, seconds: float) -> bool:
        """Stop all of it, moved on or not, and wait for that: this process ends."""
        self.keeper.abandon()
        gone = self.driver.drain(seconds)
        log.warning("replica.abandoned", extra={"stopped_all": gone})
        return gone
