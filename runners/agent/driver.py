"""A driver: claims runs, executes them, reports their ends. The same for a replica and for an agent.

Each part has a thread of its own, so that none holds up another: claims, starts (one call for all that wait),
heartbeats, logs, results (one call for all that ended), and one for each run.
"""

from __future__ import annotations

import threading
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from runners.agent.assignment import Assignment, Capacity, Ending, Result, RunKey, Verdict
from runners.agent.backoff import jittered
from runners.agent.clock import now
from runners.agent.control import ClaimCut
from runners.agent.events import OnEvent, guarded, log_event
from runners.agent.executors.slots import WAIT_SECONDS
from runners.agent.holds import Hold, Holds, Phase
from runners.agent.keeping import Keeping
from runners.agent.labels import labels_of, labels_of_attempt
from runners.agent.late import LateLog, LateLogs
from runners.agent.lifecycle import SHUTDOWN, Lifecycle
from runners.agent.loops import FOREVER, Loop
from runners.agent.outbox import Outbox
from runners.agent.placing import Placing
from runners.agent.preparing import Preparations
from runners.agent.room import Room

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from runners.agent.control import Control
    from runners.agent.executors.base import Executor
    from runners.agent.fence import Fence
    from runners.agent.logs import Stored
    from runners.agent.spool import Spool

MOST_STARTS = 100
LOG_SECONDS = 1.0
FENCED_SECONDS = 1.0
ENDING_SECONDS = 0.05
REPEAT_SECONDS = 3.0
_MAY_EXECUTE = {Phase.ACCEPTED, Phase.RUNNING}


class Driver:
    """Drives up to `slots` runs at once on one executor, within the machine's memory and processors if given."""

    def __init__(  # noqa: PLR0913 - each is a fact about the machine or a setting with a default
        self,
        control: Control,
        executor: Executor,
        *,
        slots: int,
        labels: Mapping[str, str] | None = None,
        memory_mib: int | None = None,
        cpu: float | None = None,
        heartbeat_seconds: float = 10.0,
        poll_seconds: float = 0.5,
        on_event: OnEvent = log_event,
        fence: Fence | None = None,
        spool: Spool | None = None,
        most: int | None = None,
        place_seconds: float = WAIT_SECONDS,
    ) -> None:
        self.slots = slots
        # Runs to take before it takes no more; None: no end.
        self._most = most
        self._control = control
        self._labels = dict(labels or {})
        self._room = Room(slots, memory_mib, cpu)
        self._heartbeat_seconds = heartbeat_seconds
        self._poll_seconds = poll_seconds
        self._fence = fence
        self._fenced = False
        self._on_event = guarded(on_event)
        self._holds = Holds()
        self._draining = False
        self._drain_began = 0.0
        self._ended = threading.Event()
        self._request: str | None = None
        self._claiming = threading.Lock()
        self._keeping = Keeping(control, self._on_event, spool)
        self.late = LateLogs(control, self._on_event)
        self._outbox = Outbox(control, self._on_event, self._release)
        self._placing = Placing(executor.slots, self._outbox.give_back, self._on_event, place_seconds)
        self._lifecycle = Lifecycle(
            control,
            executor,
            self._outbox,
            self._release,
            self._on_event,
            self._displace,
            fence,
            self._placing.cancel,
            self._keeping,
        )
        self._preparing = Preparations(
            control, executor, self._outbox.settle, self.apply, self._wake_starts, self._on_event
        )
        self._claims = Loop("claims", self._claim, self._on_event, control.thread_ends)
        self._starts = Loop("starts", self._start_waiting, self._on_event, control.thread_ends)
        self._beats = Loop("heartbeat", self._beat, self._on_event, control.thread_ends)
        self._logs = Loop("logs", self._flush_logs, self._on_event, control.thread_ends)
        self._loops = [
            self._claims,
            self._starts,
            self._beats,
            self._logs,
            self._preparing.loop,
            self._outbox.loop,
        ]

    # -- for its owner ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to claim. Returns at once."""
        for loop in (*self._loops, self.late.loop):
            loop.start()

    def wake(self) -> None:
        """Something is new: claim now rather than at the next poll."""
        self._claims.wake()

    @property
    def held(self) -> list[RunKey]:
        """What it holds, from the claim to the answered result."""
        return [hold.key for hold in self._holds.all()]

    @property
    def took_all(self) -> bool:
        """It was to take a number of runs, and has."""
        return self._most == 0

    def wedged_seconds(self) -> float:
        """A wedged driver does not look alive: its owner stops beating as this grows (rule R2). A full one is well."""
        return self._claims.overdue_seconds()

    def apply(self, key: RunKey, verdict: Verdict) -> None:
        """A verdict that came by another way than a heartbeat."""
        hold = self._holds.get(key)
        if hold is None or verdict is Verdict.OK:
            return
        if verdict is Verdict.SUPERSEDED:
            self._displace(hold)
        else:
            self._stop(hold, "cancelled")

    def _stop(self, hold: Hold, reason: str, *, superseded: bool = False) -> None:
        first = not hold.stop_reason
        if hold.stop(reason, superseded=superseded) and first:
            self._tell(hold, "stopping", reason=hold.stop_reason)
            self._starts.wake()

    def _displace(self, hold: Hold) -> None:
        """Its run has moved on: stopped, unless it goes on in the same attempt under another driver (rule R12).

        Raises what the control plane raises: not knowing which, it is neither stopped nor let go, and asked again.
        """
        if hold.moved_on:
            return
        if hold.phase in _MAY_EXECUTE and self._control.goes_on(hold.key, hold.assignment.attempt):
            hold.let_go()
            self._tell(hold, "let_go")
        else:
            self._stop(hold, "superseded", superseded=True)

    def take_up(self, assignments: Iterable[Assignment]) -> None:
        """Begin with assignments that did not come by our own claim: admitted to us, their reply lost."""
        for assignment in assignments:
            hold = Hold(assignment, self._logs.wake)
            if self._holds.add(hold):
                self._tell(hold, "claimed", tenant=assignment.tenant)
        self._starts.wake()

    def take_over(
        self, assignment: Assignment, maker: Mapping[str, str], deadline: float, stored: Stored | None = None
    ) -> bool:
        """Go on with what a dead driver started under the labels `maker`; the control plane names us as its driver.

        `stored`: what it had delivered of the log. None: it is not gone on with, the control plane says where it ends.

        Also beyond the slots: it is executed anyway, and nothing is claimed until there is room again. False when it
        is held already.
        """
        hold = Hold(assignment, self._logs.wake)
        hold.maker = {**labels_of_attempt(assignment), **maker}
        hold.phase = Phase.ACCEPTED
        hold.deadline = deadline
        if stored is not None:
            hold.logs.go_on_after(stored)
        if not self._holds.add(hold):
            return False
        self._tell(hold, "adopted", tenant=assignment.tenant)
        self._lifecycle.begin(hold, labels_of(assignment, self._labels))
        return True

    def reconcile(self, read_open: Callable[[], Collection[RunKey]]) -> list[RunKey]:
        """Compare with the control plane's rows: stop what is not open any more, return what we do not know.

        The keys are read by a callable, for they mean something only relative to our own state at that time: what
        was claimed after the reading is not gone, and what a claim under way brings is not unknown.
        """
        with self._claiming:
            before = {hold.key for hold in self._holds.all()}
            unanswered = self._request is not None
            opened = set(read_open())
        for key in before - opened:
            self.apply(key, Verdict.SUPERSEDED)
        # The repeat of an unanswered claim will bring what it got.
        return [] if unanswered else sorted(opened - before, key=lambda key: (key.run, key.epoch))

    def drain(self, seconds: float | None = None) -> bool:
        """Claim no more, give back what is not started, finish the rest; True when nothing is held any more."""
        until = None if seconds is None else now() + seconds
        self._begin_drain()
        self._starts.wake()
        # A claim under way may still bring something: without it "nothing is held" would be said too early.
        if not self._claims_have_ended(until):
            return False
        self._starts.wake()
        if not self._holds.wait_until_empty(seconds):
            return False
        self._stop_loops()
        return True

    def _begin_drain(self) -> None:
        if not self._draining:
            self._draining, self._drain_began = True, now()
            self._control.stop_waiting()
            self._claims.wake()

    def _claims_have_ended(self, until: float | None) -> bool:
        """Nothing is being claimed, and the last claim was answered, or its answer asked for again long enough."""
        while until is None or now() <= until:
            if self._claiming.acquire(timeout=ENDING_SECONDS):
                answered = self._request is None
                self._claiming.release()
                if answered or now() >= self._drain_began + REPEAT_SECONDS:
                    return True
                self._ended.wait(ENDING_SECONDS)
        return False

    def stop_now(self, seconds: float | None = None) -> bool:
        """As `drain`, but stop what runs; it is given back once it is confirmed gone."""
        self._begin_drain()
        for hold in self._holds.all():
            hold.stop(SHUTDOWN)
        return self.drain(seconds)

    def _stop_loops(self) -> None:
        for loop in self._loops:
            loop.stop()
        for loop in self._loops:
            loop.join(1.0)
        if self._fence is not None:
            self._fence.close()

    # -- claims -----------------------------------------------------------------------------------------------------

    def _claim(self) -> float:
        with self._claiming:
            # Before anything is looked at that may change meanwhile: who changes it ends the claim that is held.
            self._control.may_wait()
            free = self._room.free(self._holds.all())
            if self._draining or free.slots <= 0 or self.took_all:
                if self._request is None:
                    return FOREVER
                # Nothing more, but what a claim without an answer may have got.
                free = Capacity(0)
            elif self._is_fenced():
                return jittered(FENCED_SECONDS)
            elif (free := self._placeable(free)).slots <= 0:
                # A place may be freed by another process, which wakes nobody here.
                return jittered(self._poll_seconds)
            # The same id until it is answered: a repeat gets what the lost answer said, not a second helping.
            self._request = self._request or uuid.uuid4().hex
            try:
                assignments = self._control.claim(self._request, free)
            except ClaimCut:
                return 0.0
            self._request = None
            if self._most is not None:
                self._most = max(0, self._most - len(assignments))
            self.take_up(assignments)
        if assignments and len(self._holds) < self.slots:
            return 0.0
        pause = self._control.pause()
        return jittered(self._poll_seconds if pause is None else pause)

    def _is_fenced(self) -> bool:
        fenced = self._fence is not None and not self._fence.allows_claims()
        if fenced is not self._fenced:
            self._fenced = fenced
            self._on_event("fence_closed" if fenced else "fence_open")
        return fenced

    def _placeable(self, free: Capacity) -> Capacity:
        """No more than places are free (rule A29): who holds a run must not wait for others who wait for it."""
        waiting = sum(not hold.placed for hold in self._holds.all(Phase.CLAIMED))
        places = self._placing.free(waiting)
        return free if places is None else replace(free, slots=min(free.slots, places))

    def _release(self, hold: Hold) -> None:
        if hold.late:
            self.late.take(LateLog(hold.key, hold.assignment.attempt, hold.logs, lambda: self._done(hold)))
        else:
            self._done(hold)
        self._holds.discard(hold)
        if self._room.is_bounded:
            # A claim that is held asks for less than is free now, and what waits may need just that.
            self._control.stop_waiting()
        self._claims.wake()
        if self._holds.all(Phase.CLAIMED):
            self._starts.wake()

    def _done(self, hold: Hold) -> None:
        self._keeping.forget(hold)
        self._control.forget(hold.key)

    # -- starts -----------------------------------------------------------------------------------------------------

    def _start_waiting(self) -> float:
        waiting = self._holds.all(Phase.CLAIMED)
        wanted = [hold for hold in waiting if not self._turned_down(hold)]
        # The image first: no place on the machine is kept waiting for a pull.
        prepared = [hold for hold in wanted if self._preparing.is_ready(hold)]
        ready = self._placing.place(prepared)[:MOST_STARTS]
        if not ready:
            return self._placing.poll_seconds if self._holds.all(Phase.CLAIMED) else FOREVER
        asked = now()
        for hold in ready:
            hold.asked = hold.asked or asked
        verdicts = self._control.start([hold.key for hold in ready])
        for hold in ready:
            self._begin(hold, verdicts.get(hold.key, Verdict.SUPERSEDED), asked)
        return 0.0

    def _wake_starts(self) -> None:
        self._starts.wake()

    def _turned_down(self, hold: Hold) -> bool:
        """Ended before anything was made for it."""
        if hold.superseded or hold.stop_reason or (self._draining and hold.phase is Phase.CLAIMED):
            self._placing.cancel(hold)
        if hold.superseded:
            self._forget(hold)
        elif hold.stop_reason == "cancelled":
            self._outbox.settle(hold, Result(hold.key.run, hold.key.epoch, Ending.CANCELLED, "cancelled"))
        elif hold.stop_reason or (self._draining and hold.phase is Phase.CLAIMED):
            self._outbox.give_back(hold, hold.stop_reason or "drained")
        else:
            return False
        return True

    def _begin(self, hold: Hold, verdict: Verdict, asked: float) -> None:
        self.apply(hold.key, verdict)
        if verdict is Verdict.OK:
            # From before the question: the local deadline may only be earlier than the control plane's.
            hold.deadline = asked + hold.assignment.spec.timeout_seconds
            hold.phase = Phase.ACCEPTED
            self._tell(hold, "accepted")
        if not self._turned_down(hold):
            if self._fence is not None:
                self._fence.begin(hold.key, hold.asked or asked)
            self._lifecycle.begin(hold, {**labels_of(hold.assignment, self._labels), **(hold.place_labels or {})})

    def _forget(self, hold: Hold) -> None:
        hold.ended()
        self._tell(hold, "superseded")
        self._release(hold)

    # -- heartbeats and logs ----------------------------------------------------------------------------------------

    def _beat(self) -> float:
        sent = self._holds.all()
        if sent:
            asked = now()
            verdicts = self._control.heartbeat([hold.key for hold in sent])
            if self._fence is not None:
                self._fence.renewed([key for key, v in verdicts.items() if v is not Verdict.SUPERSEDED], asked)
            for hold in sent:
                # Not by key: what is held under it now may have been claimed after the question.
                if self._holds.get(hold.key) is hold:
                    self.apply(hold.key, verdicts.get(hold.key, Verdict.SUPERSEDED))
        return jittered(self._heartbeat_seconds)

    def _flush_logs(self) -> float:
        for hold in self._holds.all(Phase.RUNNING):
            if hold.logs.waiting:
                self._lifecycle.flush(hold)
        return LOG_SECONDS

    def _tell(self, hold: Hold, name: str, **fields: object) -> None:
        self._on_event(name, run=hold.key.run, epoch=hold.key.epoch, attempt=hold.assignment.attempt, **fields)
