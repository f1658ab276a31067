"""One place: a token in the ledger, from its grant to the confirmed removal of its container (rules P7, P8, P9)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from admission.physical.errors import PhysicalError, Unavailable
from admission.physical.results import FencedOwn, Freed, Register, Renewed
from runners.agent.backoff import Backoff
from runners.agent.clock import now
from runners.agent.executors.base import ExecutorError
from runners.agent.executors.slots import PlaceLost, Remove

if TYPE_CHECKING:
    from admission.physical.protocol import PhysicalSlots

ABORT_AGAIN_SECONDS = 5.0


class Keeping(Protocol):
    """What a place needs of the process that holds it."""

    slots: PhysicalSlots
    owner: str
    abort_seconds: float

    def tell(self, name: str, /, **fields: object) -> None:
        """An event."""

    def forget(self, place: SlotPlace) -> None:
        """Renew it no more."""

    def free_later(self, token: str) -> None:
        """Its container is gone, the ledger did not answer: free it when it does."""

    def remove_listed(self, token: str) -> None:
        """Remove whatever bears this token, until a listing of all states shows none."""


class SlotPlace:
    """Implements `runners.agent.executors.slots.Place`. Renewals come from another thread."""

    def __init__(
        self, keeping: Keeping, token: str, run: str, renewed_at: float, container: str | None = None
    ) -> None:
        self.token = token
        self.run = run
        self.lost = ""
        self.displaced = False
        self.container = container
        self._keeping = keeping
        self._renewed_at = renewed_at
        self._abort: Callable[[], None] | None = None
        self._lock = threading.Lock()

    # -- for the executor -------------------------------------------------------------------------------------------

    def ask(self) -> None:
        """See `Place.ask`. The local clock may only make it stop earlier; the ledger judges by its own."""
        if not self.lost and now() >= self.abort_at:
            self.lose("its renewals stay away too long")
        if self.lost:
            raise PlaceLost(f"the place of run {self.run} is lost ({self.lost}); it is not started")

    def guard(self, abort: Callable[[], None]) -> None:
        """See `Place.guard`."""
        with self._lock:
            self._abort = abort
            late = bool(self.lost)
        if late:
            self._begin_abort(abort)

    def register(self, container: str) -> None:
        """See `Place.register`."""
        self.ask()
        try:
            answer = self._register(container)
        except PhysicalError as error:
            raise PlaceLost(f"the container of run {self.run} could not be registered: {error}") from error
        if not answer.ok:
            raise PlaceLost(f"the container of run {self.run} was refused its registration ({answer.reason})")
        self._same_ledger(answer.ledger)
        self.container = container
        self._keeping.tell("slot_admitted", run=self.run, token=self.token, container=container)

    def _same_ledger(self, ledger: str) -> None:
        """After the create: whoever began another ledger since had put it on the daemon before listing containers, so
        one of the two sees the other (rule P12)."""
        if not self._keeping.slots.same_ledger(ledger):
            raise PlaceLost(f"another ledger than the one that counts run {self.run} is in force; it is not started")

    def _register(self, container: str) -> Register:
        """A lost answer is asked for once more: the same id under the same token is the same right."""
        try:
            return self._keeping.slots.register(self.token, self._keeping.owner, container)
        except Unavailable:
            return self._keeping.slots.register(self.token, self._keeping.owner, container)

    def held(self) -> bool:
        """See `Place.held`."""
        if self.lost:
            return False
        try:
            answer = self._keeping.slots.renew(self.token, self._keeping.owner)
        except PhysicalError:
            return True
        return answer.outcome is Renewed.RENEWED

    def drop(self) -> None:
        """See `Place.drop`."""
        self._keeping.forget(self)

    def release(self, remove: Remove) -> None:
        """See `Place.release`: fence, remove, free. A silent ledger does not hold up the removal."""
        self._keeping.forget(self)
        answered, recorded = self._fence()
        if self.displaced:
            return
        remove(recorded)
        if not answered:
            self._keeping.free_later(self.token)
            return
        if recorded is None:
            self._keeping.remove_listed(self.token)
        self._free(recorded)

    def _fence(self) -> tuple[bool, str | None]:
        """Whether the ledger answered, and the id it has recorded."""
        try:
            answer = self._keeping.slots.fence_own(self.token, self._keeping.owner)
        except PhysicalError as error:
            self._keeping.tell("slot_ledger_silent", run=self.run, token=self.token, error=str(error))
            return False, None
        self.displaced = self.displaced or answer.outcome is FencedOwn.DISPLACED
        return True, answer.container_id

    def _free(self, recorded: str | None) -> None:
        try:
            answer = self._keeping.slots.free(self.token, recorded)
        except PhysicalError:
            self._keeping.free_later(self.token)
            return
        if answer.outcome is Freed.CHANGED:
            raise ExecutorError(f"the place of run {self.run} changed while it was released; it is released again")

    # -- for the renewals -------------------------------------------------------------------------------------------

    @property
    def renewed_at(self) -> float:
        """When the last accepted renewal was sent, by the clock that counts suspended time."""
        return self._renewed_at

    @property
    def abort_at(self) -> float:
        """From then on its container is removed by force (rule P9)."""
        return self._renewed_at + self._keeping.abort_seconds

    def renewed(self, asked: float) -> None:
        """A renewal sent at `asked` was accepted."""
        self._renewed_at = max(self._renewed_at, asked)

    def displace(self) -> None:
        """Another process owns it now: stop, remove nothing."""
        self.displaced = True
        self.lose("another process has taken it over")

    def lose(self, why: str) -> None:
        """Never to be started any more; what was made is removed by force, in a thread of its own."""
        with self._lock:
            if self.lost:
                return
            self.lost = why
            abort = self._abort
        self._keeping.forget(self)
        self._keeping.tell("slot_lost", run=self.run, token=self.token, container=self.container, why=why)
        if abort is not None:
            self._begin_abort(abort)

    def _begin_abort(self, abort: Callable[[], None]) -> None:
        threading.Thread(target=self._abort_until_gone, args=[abort], name=f"abort-{self.run}", daemon=True).start()

    def _abort_until_gone(self, abort: Callable[[], None]) -> None:
        backoff, pause = Backoff(0.1, ABORT_AGAIN_SECONDS), threading.Event()
        while True:
            try:
                abort()
            except ExecutorError as error:
                self._keeping.tell("remove_failed", run=self.run, container=self.container, error=str(error))
                pause.wait(backoff.delay())
            else:
                return
