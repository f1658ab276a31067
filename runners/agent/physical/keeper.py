"""The keeper of places of one process of an instance: asks the ledger for each container (rules P1, P2, P13)."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from admission.physical.errors import NotVerified, PhysicalError, Unavailable
from admission.physical.protocol import ABORT_SECONDS, HOLD_SECONDS, PhysicalSlots, new_token
from admission.physical.results import Acquired, Reason, Renewed
from runners.agent.clock import now
from runners.agent.events import OnEvent, guarded, log_event
from runners.agent.executors.base import ExecutorError
from runners.agent.executors.container_config import LABEL_ATTEMPT, LABEL_RUN, LABEL_TOKEN
from runners.agent.executors.slots import NoPlace, PlaceLost
from runners.agent.physical.daemon import DaemonRecord
from runners.agent.physical.leftovers import LABEL_INSTANCE, Leftovers
from runners.agent.physical.owner import is_gone, owner_of
from runners.agent.physical.passes import Passes, PassReport
from runners.agent.physical.place import SlotPlace
from runners.agent.physical.removing import Removals
from runners.agent.physical.renewing import Renewals

if TYPE_CHECKING:
    from admission.physical.entitlement import Entitlement
    from admission.physical.redis_adapter import RedisServer
    from runners.agent.executors.docker_adapter import DockerAdapter


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds. The defaults are the rules'; tests scale them."""

    hold: float = float(HOLD_SECONDS)
    """Who does not renew for this long is recovered, by anybody."""
    renew: float = 10.0
    abort: float = float(ABORT_SECONDS)
    """From the sending of the last accepted renewal to the beginning of the forced removal."""
    pass_: float = 10.0


class PhysicalKeeper:
    """Implements `runners.agent.executors.slots.SlotKeeper` on a ledger in Redis and one Docker daemon."""

    def __init__(
        self,
        server: RedisServer,
        adapter: DockerAdapter,
        entitlement: Entitlement,
        times: Times | None = None,
    ) -> None:
        times = times or Times()
        removals = Removals(self.tell)
        leftovers = Leftovers(adapter, entitlement.instance, removals)
        record = DaemonRecord(adapter, entitlement.instance)
        self.slots = slots = PhysicalSlots(server, entitlement, record, leftovers.verify, hold_seconds=times.hold)
        self.owner = owner_of()
        self.abort_seconds = times.abort
        self.entitlement = entitlement
        self._leftovers = leftovers
        self._on_event: OnEvent = log_event
        self._passes = Passes(slots, leftovers, removals, self.owner, times.pass_, self.tell)
        self._renewals = Renewals(slots, self.owner, times.renew, self.tell)
        self._reserved: dict[str, SlotPlace] = {}
        """Granted, and nothing was made for them yet."""
        self._waiting: set[str] = set()
        self._lock = threading.Lock()

    def tell(self, name: str, /, **fields: object) -> None:
        """An event, with the instance: never its id, which is nobody's business in a log."""
        self._on_event(name, instance=self.entitlement.instance[:12], **fields)

    # -- for its owner ----------------------------------------------------------------------------------------------

    def start(self, on_event: OnEvent) -> None:
        """See `SlotKeeper.start`. What only time heals is left to the passes: nothing starts until it is healed."""
        self._on_event = guarded(on_event)
        try:
            self.slots.ensure_verified()
        except (Unavailable, NotVerified, ExecutorError) as error:
            self.tell("slot_pass_failed", error=str(error))
        except PhysicalError as error:
            raise ExecutorError(str(error)) from error
        self._renewals.start()
        self._passes.start()

    def close(self) -> None:
        """See `SlotKeeper.close`."""
        self._renewals.close()
        self._passes.close()

    def pass_now(self) -> None:
        """Do not wait for the next pass."""
        self._passes.wake(whole=True)

    @property
    def last_pass(self) -> PassReport | None:
        """What the latest pass found; None before the first."""
        return self._passes.last

    # -- places -----------------------------------------------------------------------------------------------------

    def free(self) -> int | None:
        """See `SlotKeeper.free`."""
        try:
            read = self.slots.read()
        except (PhysicalError, ExecutorError):
            return 0
        mine = self.entitlement.limit, self.entitlement.generation
        if read.config is None or read.config.lockdown_id or (read.config.limit, read.config.generation) != mine:
            return 0
        if any(holder.recovering for holder in read.holders):
            self._passes.wake()
        return max(0, self.entitlement.limit - len(read.holders))

    def ask(self, run: int, attempt: int) -> Mapping[str, str]:
        """See `SlotKeeper.ask`."""
        return {
            LABEL_INSTANCE: self.entitlement.instance,
            LABEL_TOKEN: new_token(),
            LABEL_RUN: str(run),
            LABEL_ATTEMPT: str(attempt),
        }

    def reserve(self, labels: Mapping[str, str]) -> bool:
        """See `SlotKeeper.reserve`."""
        token, run = labels[LABEL_TOKEN], _run(labels)
        with self._lock:
            first = token not in self._waiting
            self._waiting.add(token)
        asked = now()
        try:
            answer = self.slots.acquire(token, self.owner, run)
        except (PhysicalError, ExecutorError) as error:
            raise NoPlace(f"no place for a container of run {run}: {error}") from error
        if answer.recoverable:
            self._passes.wake()
        if answer.reason is Reason.NEWER:
            # The first to ask under a provisioned generation has it installed (rule P11), and waits for the drain.
            self._passes.wake(whole=True)
            return False
        if answer.outcome is Acquired.WAIT:
            if first:
                self.tell("slot_waiting", run=run, token=token, holders=answer.holders, old=answer.old_holders)
            return False
        if not answer.ok or not self._grant(token, run, asked, again=answer.outcome is Acquired.HELD):
            raise NoPlace(f"no place for a container of run {run}: {answer.outcome} ({answer.reason or 'expired'})")
        return True

    def _grant(self, token: str, run: str, asked: float, *, again: bool) -> bool:
        """From here on it is renewed. A grant whose first answer was lost began earlier: renewed at once."""
        if again:
            try:
                if self.slots.renew(token, self.owner).outcome is not Renewed.RENEWED:
                    return False
            except PhysicalError:
                return False
        place = SlotPlace(self, token, run, asked)
        with self._lock:
            self._waiting.discard(token)
            self._reserved[token] = place
        self._renewals.add(place)
        return True

    def cancel(self, labels: Mapping[str, str]) -> None:
        """See `SlotKeeper.cancel`. Also for one never granted: a grant whose answer was lost may be behind it."""
        token = labels.get(LABEL_TOKEN, "")
        with self._lock:
            place = self._reserved.pop(token, None)
            known = place is not None or token in self._waiting
            self._waiting.discard(token)
        if place is not None:
            self._renewals.forget(place)
        if known:
            self._passes.free_later(token)

    def enter(self, labels: Mapping[str, str]) -> SlotPlace | None:
        """See `SlotKeeper.enter`."""
        with self._lock:
            return self._reserved.pop(labels.get(LABEL_TOKEN, ""), None)

    def adopt(self, token: str, container: str) -> SlotPlace:
        """See `SlotKeeper.adopt`. Its owner must be proven gone: a silent one may be about to release it."""
        try:
            held = next((one for one in self.slots.read().holders if one.token == token), None)
            if held is None or held.container_id != container:
                raise PlaceLost(f"no token counts container {container[:12]}: it is removed, not adopted")
            if held.owner != self.owner and not is_gone(held.owner):
                raise PlaceLost(f"the process that holds container {container[:12]} is not proven gone")
            asked = now()
            answer = self.slots.adopt(token, held.owner, self.owner)
        except PhysicalError as error:
            raise PlaceLost(f"container {container[:12]} cannot be adopted now: {error}") from error
        if not answer.ok:
            raise PlaceLost(f"container {container[:12]} may not be adopted ({answer.reason}): it is removed")
        place = SlotPlace(self, token, held.run, asked, container)
        self._renewals.add(place)
        self.tell("slot_adopted", run=held.run, token=token, container=container)
        return place

    # -- for its places ---------------------------------------------------------------------------------------------

    def forget(self, place: SlotPlace) -> None:
        """See `Keeping.forget`."""
        self._renewals.forget(place)

    def free_later(self, token: str) -> None:
        """See `Keeping.free_later`."""
        self._passes.free_later(token)

    def remove_listed(self, token: str) -> None:
        """See `Keeping.remove_listed`."""
        self._leftovers.remove_token(token)


def _run(labels: Mapping[str, str]) -> str:
    return f"{labels[LABEL_RUN]}/{labels[LABEL_ATTEMPT]}"
