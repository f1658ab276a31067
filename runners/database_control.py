"""The control plane for a driver in its own process: named SQL instead of REST, the same protocol.

Used from many threads, each with a database connection of its own. An outage becomes `ControlUnavailable`, and the
broken connection is closed, or the thread would find it broken for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from django.db import InterfaceError, OperationalError, close_old_connections, connection

from admission.drivers import Driver, DriverGone
from admission.engine import Envelope, admit
from admission.services import runs
from runners.agent.assignment import Assignment, Capacity, Result, RunKey, Verdict
from runners.agent.control import ControlUnavailable, LogOffset, Superseded
from runners.agent.wording import MAX_DETAIL, MAX_REASON, storable
from runners.services import logs

T = TypeVar("T")

DRAIN_REASONS = frozenset({"drained", "shutdown", "fenced"})
"""Given back because the driver stops or was not allowed to start it, not because something was wrong with the run: no
attempt is burned (rule R14)."""


def _as_asked(capacity: Capacity) -> Capacity:
    return capacity


class DatabaseControl:
    """Implements `runners.agent.control.Control` for one driver of this process.

    `narrow` takes from what the driver has free what its machine has not.
    """

    def __init__(self, driver: Driver, narrow: Callable[[Capacity], Capacity] = _as_asked) -> None:
        self.driver = driver
        self._narrow = narrow

    def claim(self, request_id: str, capacity: Capacity) -> Sequence[Assignment]:
        """Admit. A lost answer is found by reading this driver's own rows (rule A10), so no answer is stored."""
        free = _call(lambda: self._narrow(capacity))
        envelope = Envelope(free.slots, free.memory_mib, free.cpu)
        try:
            admitted = _call(lambda: admit(self.driver, envelope))
        except DriverGone:
            # Draining or declared dead: nothing to be had. The owner's beat says which.
            return []
        return [Assignment(a.run, a.epoch, a.attempt, a.tenant, a.spec) for a in admitted]

    def pause(self) -> float | None:
        """The driver's own interval; what is announced wakes it earlier."""
        return None

    def may_wait(self) -> None:
        """Claims are never held here."""

    def stop_waiting(self) -> None:
        """Claims are never held here."""

    def start(self, keys: Sequence[RunKey]) -> dict[RunKey, Verdict]:
        """Accept the start of these holds."""
        return _verdicts(_call(lambda: runs.start_runs(self.driver, _holds(keys))))

    def heartbeat(self, keys: Sequence[RunKey]) -> dict[RunKey, Verdict]:
        """Renew leases and permits of exactly these."""
        return _verdicts(_call(lambda: runs.renew_runs(self.driver, _holds(keys))))

    def append_log(self, key: RunKey, offset: int, data: bytes) -> int:
        """Store log bytes; returns the stored size."""
        try:
            return _call(lambda: logs.append_log(self.driver, key.run, key.epoch, offset, data)).stored
        except logs.OffsetMismatch as error:
            raise LogOffset(error.stored) from error
        except logs.HoldSuperseded as error:
            raise Superseded(str(error)) from error

    def settle(self, results: Sequence[Result]) -> dict[RunKey, Verdict]:
        """Report ends."""
        settlements = [_settlement(result) for result in results]
        verdicts, _ = _call(lambda: runs.settle_runs(self.driver, settlements))
        return _verdicts(verdicts)

    def give_back(self, keys: Sequence[RunKey], reason: str) -> None:
        """Return runs of which nothing is left here."""
        drained = reason in DRAIN_REASONS
        _call(lambda: runs.give_back(self.driver, _holds(keys), storable(reason, MAX_DETAIL), drained=drained))

    def thread_ends(self) -> None:
        """Close this thread's connection: each thread has its own, and each run has a thread."""
        connection.close()


def _holds(keys: Sequence[RunKey]) -> list[runs.Hold]:
    return [(key.run, key.epoch) for key in keys]


def _settlement(result: Result) -> runs.Settlement:
    reason, detail = storable(result.reason, MAX_REASON), storable(result.detail, MAX_DETAIL)
    return runs.Settlement(result.run, result.epoch, result.ending.value, reason, detail, result.exit_code)


def _verdicts(found: dict[runs.Hold, runs.HoldVerdict]) -> dict[RunKey, Verdict]:
    return {RunKey(*hold): Verdict(verdict.value) for hold, verdict in found.items()}


def _call(work: Callable[[], T]) -> T:
    if not connection.in_atomic_block:
        close_old_connections()
    try:
        return work()
    except (OperationalError, InterfaceError) as error:
        if not connection.in_atomic_block:
            connection.close()
        raise ControlUnavailable(f"the database does not answer: {error}") from error
