"""A replica's part in leadership: it competes, sends what is due while it leads, and runs local loops."""

from __future__ import annotations

import logging
from collections.abc import Callable

from django.db import DatabaseError

from leadership.election import LeaderElector, Observer
from leadership.local import declare_loops, local_loops, noted
from leadership.registry import get_loop
from leadership.ticker import Ticker
from recovery.replica.ticking import Ticking, no_jitter

log = logging.getLogger(__name__)


def own_loop(name: str, place: str, tick: Callable[[], None], *, jitter: Callable[[], float] = no_jitter) -> Ticking:
    """A thread for a loop that the process runs itself; its period comes from the registry."""
    return Ticking(name, noted(name, place, tick), get_loop(name).seconds(), jitter=jitter)


class Leading:
    """Started after the first beat; stopped first, so that a successor leads while this replica still drains."""

    def __init__(self, holder: str, name: str, *, observer: Observer | None = None) -> None:
        self.elector = LeaderElector(holder, name, observer=observer)
        ticker = Ticker(self.elector.term)
        # A thread each: a slow send must not delay a renewal, nor a mail server the sweeps.
        self._threads = [
            own_loop("lease", name, self.elector.tick),
            own_loop("ticker", name, ticker.tick),
            *(Ticking(loop.name, tick, loop.seconds()) for loop, tick in local_loops(name)),
        ]

    def start(self) -> None:
        """Say which loops this code has, then begin."""
        declare_loops()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """No further tick; the lease goes back at once (rule L4)."""
        for thread in self._threads:
            thread.stop()
        try:
            self.elector.resign()
        except DatabaseError:
            # Belief has ended all the same; the lease runs out, and the failover takes its length instead of a tick.
            log.exception("leader.resign_failed")
