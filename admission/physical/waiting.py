"""Waiting for a slot: polls with jitter, woken by a release of the same process, up to the caller's deadline."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from admission.physical.errors import NotVerified, PhysicalError, Superseded
from admission.physical.protocol import PhysicalSlots
from admission.physical.results import Acquire, Acquired, Reason

log = logging.getLogger("admission.physical")

POLL_SECONDS = 0.5
"""Between two asks, half to one and a half of it: releases of other processes are seen by asking only."""

_FOR_GOOD = (Reason.OWNER, Reason.FENCED, Reason.EXPIRED)
"""The token is spent: asking again cannot help, another attempt needs a new one."""


@dataclass(frozen=True, slots=True)
class Wait:
    """`acquired.ok`: the slot is held. Else the last answer, if there was one, and what stood in the way."""

    acquired: Acquire | None
    waited_seconds: float
    error: str = ""

    @property
    def ok(self) -> bool:
        """Whether the slot is held."""
        return self.acquired is not None and self.acquired.ok


def now() -> float:
    """The clock of deadlines here: monotonic, and counting while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Waiter:
    """One wait of one token."""

    def __init__(
        self,
        slots: PhysicalSlots,
        token: str,
        owner: str,
        *,
        run: str,
        recover: Callable[[], None],
        cancelled: Callable[[], bool],
    ) -> None:
        self._slots = slots
        self._token, self._owner, self._run = token, owner, run
        self._recover = recover
        self._cancelled = cancelled
        self._last: Acquire | None = None
        self._error = ""

    def until(self, deadline: float) -> Wait:
        """Ask until granted, refused for good, cancelled, or `deadline` by `now()`. Asks at least once.

        Unless it is `ok` the caller releases the token (`fence_own`): a grant whose answer was lost may be behind it.
        """
        began = now()
        while not self._cancelled():
            if self._settled() or now() >= deadline:
                break
            self._pause(deadline)
        wait = Wait(self._last, now() - began, self._error)
        if not wait.ok:
            self._leave()
        return wait

    def _settled(self) -> bool:
        try:
            return self._ask()
        except Superseded as error:
            self._error = str(error)
            return True
        except PhysicalError as error:
            # Unknown is neither yes nor no: the same token is asked for again, and nothing is started meanwhile.
            self._error = str(error)
            if isinstance(error, NotVerified):
                self._note()
            return False

    def _ask(self) -> bool:
        answer = self._last = self._slots.acquire(self._token, self._owner, self._run)
        self._error = "" if answer.reason is None else f"the slots answered {answer.outcome}: {answer.reason}"
        if answer.ok or answer.outcome is Acquired.SUPERSEDED or answer.reason in _FOR_GOOD:
            return True
        if answer.reason is Reason.NEWER:
            self._slots.install()
        elif answer.recoverable:
            self._recover()
        if answer.outcome is not Acquired.WAIT:
            self._note()
        return False

    def _note(self) -> None:
        """Also who waits for the gate or for a lockdown's end is waiting (P15)."""
        try:
            self._slots.wait_on(self._token, self._owner, self._run)
        except PhysicalError as error:
            log.warning("a waiting token could not be noted: %s", error)

    def _pause(self, deadline: float) -> None:
        jittered = POLL_SECONDS * (0.5 + secrets.randbelow(1000) / 1000)
        with self._slots.released:
            self._slots.released.wait(max(0.0, min(jittered, deadline - now())))

    def _leave(self) -> None:
        try:
            self._slots.leave(self._token)
        except PhysicalError as error:
            # It leaves the metric by itself after 30 s.
            log.warning("a token that waits no more could not be taken from the waiting ones: %s", error)
