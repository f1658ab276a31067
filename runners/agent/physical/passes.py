"""The periodic pass of every process of an instance, and recovery on demand (rules P10, P11, P12).

Not gated by leadership: an agent has no leader, and any process that is left must heal the instance. Each step may be
repeated and done by several processes at once; what decides is decided by the ledger's scripts.
"""

from __future__ import annotations

import functools
import threading
import traceback
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from admission.physical.errors import PhysicalError, Refused
from admission.physical.results import FencedOwn, Freed, Installed
from runners.agent.backoff import jittered
from runners.agent.clock import now
from runners.agent.executors.base import ExecutorError

if TYPE_CHECKING:
    from admission.physical.protocol import PhysicalSlots
    from runners.agent.events import OnEvent
    from runners.agent.executors.docker_adapter import Listed
    from runners.agent.physical.leftovers import Leftover, Leftovers
    from runners.agent.physical.removing import Removals

WAKE_SECONDS = 0.1
WHY = {
    Installed.SUPERSEDED: "the generation of this process was superseded: it starts nothing more; give it the "
    "CONTROLPLANE_RUN_GENERATION of the others, or stop it",
    Installed.REFUSED: "the configuration of this process is not the stored one: a changed limit needs a higher "
    "CONTROLPLANE_RUN_GENERATION",
}


@dataclass(frozen=True, slots=True)
class PassReport:
    """One pass: what really exists beside what is counted, and what is wrong (rule P15)."""

    began_at: float
    """On `runners.agent.clock`: it answers what was asked for before."""
    took_seconds: float
    containers: Mapping[str, int]
    """By state, as the daemon lists them."""
    without_token: int
    without_container: int
    problems: tuple[str, ...]


class Passes:
    """A thread that passes again and again, and at once when it is woken."""

    def __init__(  # noqa: PLR0917 - made in one place
        self,
        slots: PhysicalSlots,
        leftovers: Leftovers,
        removals: Removals,
        owner: str,
        seconds: float,
        tell: OnEvent,
    ) -> None:
        self._slots = slots
        self._leftovers = leftovers
        self._removals = removals
        self._owner = owner
        self._seconds = seconds
        self._tell = tell
        self.last: PassReport | None = None
        self._wake = threading.Event()
        self._whole = False
        self._closing = threading.Event()
        self._listed: list[Listed] = []
        self._fenced: set[str] = set()
        self._tokenless: set[str] = set()
        self._without_container = 0
        self._unfreed: set[str] = set()
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin, with a pass."""
        threading.Thread(target=self._run, name="slots-pass", daemon=True).start()

    def close(self) -> None:
        """No further pass."""
        self._closing.set()
        self._wake.set()

    def wake(self, *, whole: bool = False) -> None:
        """Recover now: somebody waits for what can be recovered. `whole`: or for what a whole pass would settle."""
        self._whole = self._whole or whole
        self._wake.set()

    def free_later(self, token: str) -> None:
        """Nothing is or will be made for it by this process: free it as soon as the ledger answers."""
        with self._lock:
            self._unfreed.add(token)
        self._wake.set()

    def _run(self) -> None:
        due = now()
        while not self._closing.is_set():
            try:
                if now() >= due or self._whole:
                    self._whole = False
                    due = now() + jittered(self._seconds)
                    self.last = self.once()
                else:
                    self._free_unfreed()
                    self._recover()
            except (PhysicalError, ExecutorError) as error:
                self._tell("slot_pass_failed", error=str(error))
            except Exception as error:  # noqa: BLE001 - told with its stack; without passes nothing would ever heal
                self._tell("loop_failed", loop="slots-pass", error=repr(error), stack=traceback.format_exc())
            self._wake.wait(max(0.0, due - now()))
            # Many ask at once, and what is under way takes its time: one look serves all of them.
            self._closing.wait(WAKE_SECONDS)
            self._wake.clear()

    # -- one pass ---------------------------------------------------------------------------------------------------

    def once(self) -> PassReport:
        """One pass. Whatever stops a step is in the report; the next pass begins anew."""
        began, problems = now(), list[str]()
        for step in (self._slots.ensure_verified, self._install, self._free_unfreed, self._recover, self._sweep):
            try:
                step()
            except (PhysicalError, ExecutorError) as error:
                # One cause stops several steps, in the same words.
                problems += [str(error)] if str(error) not in problems else []
        if problems:
            self._tell("slot_pass_failed", error="; ".join(problems))
        return self._report(began, problems)

    def _install(self) -> None:
        answer = self._slots.install()
        if answer.outcome is Installed.INSTALLED:
            self._tell("slot_generation_installed", fenced=answer.fenced)
        elif answer.outcome is not Installed.SAME:
            raise Refused(f"{WHY[answer.outcome]} ({answer.reason or answer.outcome})")

    def _free_unfreed(self) -> None:
        with self._lock:
            tokens = list(self._unfreed)
        for token in tokens:
            answer = self._slots.fence_own(token, self._owner)
            if answer.outcome is FencedOwn.FENCED:
                self._removals.begin(token, functools.partial(self._remove_and_free, token, answer.container_id))
            else:
                self._slots.leave(token)
            with self._lock:
                self._unfreed.discard(token)

    def _recover(self) -> None:
        """Everything that is fenced or expired: each in a thread of its own, or one that cannot be removed would hold
        up all others."""
        answer = self._slots.fence_expired()
        self._fenced = {holder.token for holder in answer.holders}
        for holder in answer.holders:
            work = functools.partial(self._remove_and_free, holder.token, holder.container_id)
            self._removals.begin(holder.token, work)

    def _remove_and_free(self, token: str, container: str | None) -> None:
        """The id is the one that the fence returned; the entry must still say the same when it is freed (rule P6)."""
        if container is None:
            self._leftovers.remove_token(token)
        else:
            self._leftovers.remove_one(container)
        answer = self._slots.free(token, container)
        if answer.outcome is Freed.FREED:
            self._tell("slot_recovered", token=token, container=container)

    def _sweep(self) -> None:
        mark = self._slots.begin_pass()
        self._listed = self._leftovers.listed()
        self._without_container = self._missing({one.id for one in self._listed})
        found = self._leftovers.find(self._slots.read, self._listed)
        self._tokenless = {one.container for one in found}
        started = [one.container[:12] for one in found if one.started]
        if started:
            reason = f"started containers that no token counts: {', '.join(started)}"
            self._tell("slot_lockdown", reason=reason, id=self._slots.set_lockdown(reason))
        for one in found:
            self._removals.begin(one.container, functools.partial(self._remove_leftover, one))
        if mark.lockdown_id and not found and self._slots.clear_lockdown(mark):
            self._tell("slot_lockdown_cleared")

    def _missing(self, listed: set[str]) -> int:
        """Holders whose recorded container is not there, but for those that came since the listing."""
        holders = self._slots.read().holders
        return sum(
            one.container_id is not None and one.container_id not in listed and one.age_seconds > self._seconds
            for one in holders
        )

    def _remove_leftover(self, found: Leftover) -> None:
        self._leftovers.remove_one(found.container)
        self._tell("slot_leftover_removed", token=found.token, container=found.container, started=found.started)

    # -- what it tells ----------------------------------------------------------------------------------------------

    def _report(self, began: float, problems: list[str]) -> PassReport:
        outstanding = self._fenced | self._tokenless
        self._removals.keep(outstanding)
        failed = self._removals.failures(outstanding)
        return PassReport(
            began_at=began,
            took_seconds=now() - began,
            containers=dict(Counter(one.state for one in self._listed)),
            without_token=len(self._tokenless),
            without_container=self._without_container,
            problems=(*problems, *failed.values()),
        )
