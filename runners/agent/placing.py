"""Waiting for a place before the start is asked for (rules A29, Q5): no container exists before, none without.

Nothing is held while it waits but the run itself, admitted and not started. One that waits too long goes back to the
queue before its start deadline, its permit returned, no attempt burned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runners.agent.clock import now
from runners.agent.executors.slots import POLL_SECONDS, WAIT_SECONDS, NoPlace, SlotKeeper

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from runners.agent.events import OnEvent
    from runners.agent.holds import Hold

NO_SLOT = "no_slot"


class Placing:
    """Between claim and start. `give_back` returns a run to the queue."""

    def __init__(
        self,
        slots: SlotKeeper,
        give_back: Callable[[Hold, str], None],
        on_event: OnEvent,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._slots = slots
        self._give_back = give_back
        self._on_event = on_event
        self._wait_seconds = wait_seconds
        self._refusal = ""
        self.poll_seconds = POLL_SECONDS

    def free(self, waiting: int) -> int | None:
        """How many more could be placed, beside those that wait here already; None: any number."""
        free = self._slots.free()
        return None if free is None else max(0, free - waiting)

    def place(self, holds: Sequence[Hold]) -> list[Hold]:
        """Those that have a place now, in their order. The others wait on, or go back."""
        placed = []
        silent = False
        for hold in holds:
            if not hold.placed and not silent:
                silent = not self._try(hold)
            if hold.placed:
                placed.append(hold)
            elif now() >= hold.since + self._wait_seconds:
                self.cancel(hold)
                self._give_back(hold, NO_SLOT)
        return placed

    def _try(self, hold: Hold) -> bool:
        """False: nobody can say. The others of this round would wait for their answer as long, for nothing."""
        if hold.place_labels is None:
            hold.place_labels = self._slots.ask(hold.key.run, hold.assignment.attempt)
        try:
            hold.placed = self._slots.reserve(hold.place_labels)
        except NoPlace as error:
            self._tell(str(error), hold)
            return False
        self._tell("", hold)
        return True

    def cancel(self, hold: Hold) -> None:
        """It will not be made: its place, if it has or awaits one, is another's."""
        if hold.place_labels is not None:
            self._slots.cancel(hold.place_labels)

    def _tell(self, refusal: str, hold: Hold) -> None:
        """Once for each reason, not at each try."""
        if refusal and refusal.partition(": ")[2] != self._refusal.partition(": ")[2]:
            self._on_event("slots_refused", run=hold.key.run, epoch=hold.key.epoch, error=refusal)
        self._refusal = refusal
