"""The control plane for a driver in its own process: named SQL instead of REST, the same protocol.

Used from many threads, each with a database connection of its own. An outage becomes `ControlUnavailable`, and the
broken connection is closed, or the thread would find it broken for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from django.db import DatabaseError, InterfaceError, close_old_connections, connection

from admission.drivers import Driver, DriverGone
from admission.engine import Envelope, admit
from admission.services import runs
from controlplane.core.conf import conf
from controlplane.core.errors import DomainError
from controlplane.core.sql import is_outage
from runners.agent.artifacts import Kept, Limits
from runners.agent.assignment import Assignment, Capacity, Result, RunKey, Verdict
from runners.agent.control import ArtifactRefused, ControlUnavailable, LogOffset, Superseded
from runners.agent.wording import MAX_DETAIL, MAX_REASON, storable
from runners.services import artifacts, logs, secrets
from runners.services.hiding import hidden_text, hidden_values

T = TypeVar("T")

DRAIN_REASONS = frozenset({"drained", "shutdown", "fenced", "no_slot"})
"""Given back because the driver stops or was not allowed to start it, not because something was wrong with the run: no
attempt is burned (rule R14)."""


def _as_asked(capacity: Capacity) -> Capacity:
    return capacity


def _names_any(assignment: Assignment) -> bool:
    return bool(assignment.spec.secrets or assignment.spec.registry_secret)


class DatabaseControl:
    """Implements `runners.agent.control.Control` for one driver of this process.

    `narrow` takes from what the driver has free what its machine has not.
    """

    def __init__(self, driver: Driver, narrow: Callable[[Capacity], Capacity] = _as_asked) -> None:
        self.driver = driver
        self._narrow = narrow
        self._silent = False

    def silence(self) -> None:
        """This incarnation was declared dead: from here on nothing is written under it (rule R12).

        What its runs print or return is dropped, as the ledger would refuse it once they were taken; their leases are
        not renewed, and its fence is not told that they were.
        """
        self._silent = True

    def claim(self, request_id: str, capacity: Capacity) -> Sequence[Assignment]:
        """Admit. A lost answer is found by reading this driver's own rows (rule A10), so no answer is stored."""
        if self._silent:
            return []
        free = _call(lambda: self._narrow(capacity))
        envelope = Envelope(free.slots, free.memory_mib, free.cpu)
        try:
            admitted = _call(lambda: admit(self.driver, envelope))
        except DriverGone:
            # Draining or declared dead: nothing to be had. The owner's beat says which.
            return []
        return self.with_secrets([Assignment(a.run, a.epoch, a.attempt, a.tenant, a.spec) for a in admitted])

    def with_secrets(self, assignments: Sequence[Assignment]) -> list[Assignment]:
        """The same with the secrets that they name, for the holds of this driver: after a claim, and again for what
        was taken up. Those whose secrets are not to be had were ended with the reason, and are left out."""
        named = [assignment for assignment in assignments if _names_any(assignment)]
        given = _call(lambda: secrets.give(self.driver, [(a.run, a.epoch) for a in named]))
        held = [a for a in assignments if (a.run, a.epoch) not in given.refused]
        return [a.given(given.values.get((a.run, a.epoch), {})) for a in held]

    def with_hidden(self, assignment: Assignment) -> Assignment:
        """The same with what its output must not tell, for an execution that was made before (rule R10): it has its
        environment, with a value that may have been changed or deleted since, which must not end it."""
        values = _call(lambda: hidden_values(assignment.run)) if _names_any(assignment) else []
        return replace(assignment, secrets={str(number): value for number, value in enumerate(values)})

    def pause(self) -> float | None:
        """The driver's own interval; what is announced wakes it earlier."""
        return None

    def may_wait(self) -> None:
        """Claims are never held here."""

    def stop_waiting(self) -> None:
        """Claims are never held here."""

    def start(self, keys: Sequence[RunKey]) -> dict[RunKey, Verdict]:
        """Accept the start of these holds."""
        if self._silent:
            return dict.fromkeys(keys, Verdict.SUPERSEDED)
        return _verdicts(_call(lambda: runs.start_runs(self.driver, _holds(keys))))

    def heartbeat(self, keys: Sequence[RunKey]) -> dict[RunKey, Verdict]:
        """Renew leases and permits of exactly these."""
        if self._silent:
            raise ControlUnavailable("this incarnation was declared dead")
        return _verdicts(_call(lambda: runs.renew_runs(self.driver, _holds(keys))))

    def pulling(self, keys: Sequence[RunKey]) -> dict[RunKey, Verdict]:
        """Say that the images of these are being pulled."""
        return _verdicts(_call(lambda: runs.extend_starts(self.driver, _holds(keys))))

    def append_log(self, key: RunKey, offset: int, data: bytes) -> int:
        """Store log bytes; returns the stored size."""
        if self._silent:
            return offset + len(data)
        try:
            return _call(lambda: logs.append_log(self.driver, key.run, key.epoch, offset, data)).stored
        except logs.OffsetMismatch as error:
            raise LogOffset(error.stored) from error
        except logs.HoldSuperseded as error:
            raise Superseded(str(error)) from error

    @property
    def artifact_limits(self) -> Limits:
        """By the settings of this process."""
        settings = conf()
        return Limits(settings.artifact_file_bytes, settings.artifact_run_bytes, settings.artifact_count)

    def put_artifact(self, key: RunKey, kept: Kept) -> None:
        """Store one kept file."""
        announced = artifacts.Announced(kept.name, kept.size, bytes.fromhex(kept.sha256))
        try:
            with kept.path.open("rb") as file:
                _call(lambda: artifacts.store_artifact(self.driver, key.run, key.epoch, announced, file))
        except logs.HoldSuperseded as error:
            raise Superseded(str(error)) from error
        except (artifacts.StorageFailed, artifacts.UploadBroken) as error:
            raise ControlUnavailable(str(error)) from error
        except DomainError as error:
            raise ArtifactRefused(str(error)) from error

    def settle(self, results: Sequence[Result]) -> dict[RunKey, Verdict]:
        """Report ends."""
        if self._silent:
            return {result.key: Verdict.SUPERSEDED for result in results}
        settlements = [_settlement(result) for result in results]
        verdicts, _ = _call(lambda: runs.settle_runs(self.driver, settlements))
        ends = [(result.run, result.epoch, result.log_end) for result in results if result.log_end is not None]
        if ends:
            _call(lambda: logs.note_log_ends(self.driver, ends))
        return _verdicts(verdicts)

    def give_back(self, keys: Sequence[RunKey], reason: str) -> None:
        """Return runs of which nothing is left here."""
        if self._silent:
            return
        drained = reason in DRAIN_REASONS
        _call(lambda: runs.give_back(self.driver, _holds(keys), storable(reason, MAX_DETAIL), drained=drained))

    def forget(self, key: RunKey) -> None:
        """Nothing is kept by hold."""

    def goes_on(self, key: RunKey, attempt: int) -> bool:
        """Whether another adopted this attempt."""
        held = (key.run, attempt)
        return held in _call(lambda: runs.adopted_by_others(self.driver, [held]))

    def thread_ends(self) -> None:
        """Close this thread's connection: each thread has its own, and each run has a thread."""
        connection.close()


def _holds(keys: Sequence[RunKey]) -> list[runs.Hold]:
    return [(key.run, key.epoch) for key in keys]


def _settlement(result: Result) -> runs.Settlement:
    reason, detail = storable(result.reason, MAX_REASON), storable(hidden_text(result.run, result.detail), MAX_DETAIL)
    return runs.Settlement(result.run, result.epoch, result.ending.value, reason, detail, result.exit_code)


def _verdicts(found: dict[runs.Hold, runs.HoldVerdict]) -> dict[RunKey, Verdict]:
    return {RunKey(*hold): Verdict(verdict.value) for hold, verdict in found.items()}


def _call(work: Callable[[], T]) -> T:
    if not connection.in_atomic_block:
        close_old_connections()
    try:
        return work()
    except (DatabaseError, InterfaceError) as error:
        if not is_outage(error):
            raise
        if not connection.in_atomic_block:
            connection.close()
        raise ControlUnavailable(f"the database does not answer: {error}") from error
