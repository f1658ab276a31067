"""Renewals of all places of a process, and what is done when they stay away (rule P9).

Two threads, for the one that asks Redis may wait 5 s for each answer and the other must be in time.
"""

from __future__ import annotations

import threading
import traceback
from typing import TYPE_CHECKING

from admission.physical.errors import PhysicalError
from admission.physical.results import Renewed
from runners.agent.clock import now
from runners.agent.executors.base import ExecutorError

if TYPE_CHECKING:
    from admission.physical.protocol import PhysicalSlots
    from runners.agent.events import OnEvent
    from runners.agent.physical.place import SlotPlace

LOOK_SECONDS = 0.1
AGAIN_SECONDS = 1.0


class Renewals:
    """Renews what was added, the longest unrenewed first."""

    def __init__(self, slots: PhysicalSlots, owner: str, renew_seconds: float, tell: OnEvent) -> None:
        self._slots = slots
        self._owner = owner
        self._renew_seconds = renew_seconds
        self._tell = tell
        self._places: dict[str, SlotPlace] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._silent = False

    def start(self) -> None:
        """Begin."""
        for target, name in ((self._renew_all, "slots-renew"), (self._watch, "slots-deadlines")):
            threading.Thread(target=target, name=name, daemon=True).start()

    def close(self) -> None:
        """End."""
        self._closed.set()

    def add(self, place: SlotPlace) -> None:
        """Renew it from now on."""
        with self._lock:
            self._places[place.token] = place

    def forget(self, place: SlotPlace) -> None:
        """Renew it no more."""
        with self._lock:
            self._places.pop(place.token, None)

    def held(self) -> list[SlotPlace]:
        """What is renewed, the longest unrenewed first."""
        with self._lock:
            return sorted(self._places.values(), key=lambda place: place.renewed_at)

    def _watch(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            moment = now()
            for place in self.held():
                if moment >= place.abort_at:
                    place.lose("no renewal was accepted for too long")

    def _renew_all(self) -> None:
        pause = LOOK_SECONDS
        while not self._closed.wait(pause):
            try:
                pause = LOOK_SECONDS if self._renew_due() else AGAIN_SECONDS
            except Exception as error:  # noqa: BLE001 - told with its stack; unrenewed, everything here would be aborted
                self._tell("loop_failed", loop="slots-renew", error=repr(error), stack=traceback.format_exc())
                pause = AGAIN_SECONDS

    def _renew_due(self) -> bool:
        """False: no answer. The others would wait for theirs as long; soon again, the oldest first."""
        for place in self.held():
            if now() < place.renewed_at + self._renew_seconds:
                return True
            if not self._renew(place):
                return False
        return True

    def _renew(self, place: SlotPlace) -> bool:
        asked = now()
        try:
            answer = self._slots.renew(place.token, self._owner)
        except (PhysicalError, ExecutorError) as error:
            if not self._silent:
                self._tell("slot_ledger_silent", run=place.run, token=place.token, error=str(error))
            self._silent = True
            return False
        self._silent = False
        if answer.outcome is Renewed.RENEWED:
            place.renewed(asked)
        elif answer.outcome is Renewed.DISPLACED:
            place.displace()
        else:
            place.lose(f"its renewal was answered {answer.outcome}" + (f" ({answer.reason})" if answer.reason else ""))
        return True
