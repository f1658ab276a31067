"""One replica: its threads and their order of start and stop.

Order at start: the first beat (registration) comes before anything reads the live set; then dead predecessors are
reconciled; only then is work claimed. Order at stop: the lease back first, no more claims, finish or give
back, then the goodbye.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from dataclasses import dataclass, field
from types import FrameType

from django.db import DatabaseError, connection

from controlplane.core.conf import conf
from controlplane.core.errors import DomainError
from controlplane.core.identity import current_process
from controlplane.core.wakeups import Listener
from recovery.replica.adoption import Legacy
from recovery.replica.envelope import MachineEnvelope
from recovery.replica.executor import LABEL_DRIVER, make_executor
from recovery.replica.fence import make_replica_fence
from recovery.replica.holds import HoldKeeper
from recovery.replica.leading import Leading, own_loop
from recovery.replica.remains import Remains
from recovery.replica.slots import SlotReports
from recovery.replica.ticking import Ticking, cryptographic_jitter
from recovery.services.reconcile import reconcile
from recovery.services.replicas import Machine, beat, leave, register_replica, replica_driver
from recovery.services.reporting import Report
from runners.agent.clock import now
from runners.agent.driver import Driver
from runners.agent.executors.base import ExecutorError
from runners.agent.signalled import Signalled
from runners.database_control import DatabaseControl

log = logging.getLogger(__name__)

SETTLED_SECONDS = 60.0
PLACE_SHARE = 0.75
"""Of the start deadline: a run that waited so long for a physical slot is given back before it is taken away."""
REMAINS_SECONDS = 1.0
EXIT_DECLARED_DEAD = 75
"""Temporary failure: it could not come back as a new incarnation by itself; the supervisor starts it again."""


def run_replica(name: str) -> int:
    """Run a replica until it is told to stop, under one incarnation after the other; returns the exit code."""
    asked = Wishes()
    process = ReplicaProcess(name, asked)
    while (code := process.run()) == EXIT_DECLARED_DEAD:
        remains = process.remains()
        try:
            process = ReplicaProcess(name, asked, remains)
        except (DomainError, ExecutorError, DatabaseError):
            log.exception("replica.not_reborn")
            remains.end(SETTLED_SECONDS)
            break
    return code


@dataclass(frozen=True, slots=True)
class Wishes:
    """What signals asked of this process, whichever incarnation was there to hear them."""

    stop: Signalled = field(default_factory=Signalled)
    now: Signalled = field(default_factory=Signalled)


class ReplicaProcess:
    """One incarnation: runs until a signal, or until it finds itself declared dead.

    `remains`: what the incarnation before it in this process still executes.
    """

    def __init__(self, name: str, asked: Wishes, remains: Remains | None = None) -> None:
        settings = conf()
        self._asked = asked
        self._old = remains
        self._identity = current_process()
        self._name = name or f"{self._identity.host}-{self._identity.pid}"
        self._executor = make_executor()
        self._executor.slots.start(_log_event)
        machine = Machine(
            self._executor.name, settings.replica_slots, settings.replica_memory_mib, settings.replica_cpu
        )
        registered_at = now()
        self._replica = register_replica(self._name, self._identity, machine)
        self._dead = threading.Event()
        driver = replica_driver(self._replica)
        self._legacy = Legacy(self._executor, driver, self._asked.stop.is_set)
        self._envelope = MachineEnvelope(driver, self._identity.machine, lambda: len(self._driver.held))
        control = DatabaseControl(self._envelope.bounding(), self._envelope.narrow)
        labels = {LABEL_DRIVER: str(self._replica.incarnation)}
        self._fence = make_replica_fence(self._executor, labels, _log_event, registered_at)
        self._control = control
        self._driver = Driver(
            control,
            self._executor,
            slots=settings.replica_slots,
            labels=labels,
            memory_mib=settings.replica_memory_mib or None,
            cpu=settings.replica_cpu or None,
            heartbeat_seconds=settings.permit_renew_seconds,
            on_event=_log_event,
            fence=self._fence,
            place_seconds=settings.start_deadline_seconds * PLACE_SHARE,
        )
        self._keeper = HoldKeeper(control, self._driver)
        self._leading = Leading(str(self._replica.incarnation), self._name)
        self._slot_reports = SlotReports(self._executor.slots, self._name, self._identity.machine)
        self._loops = self._make_loops()
        # What is announced is claimed at once instead of at the next poll.
        self._listener = Listener(self._driver.wake)

    def _make_loops(self) -> list[Ticking]:
        return [
            own_loop("beat", self._name, self._beat),
            own_loop("probe", self._name, self._envelope.sample),
            own_loop("holds", self._name, self._keeper.tick),
            own_loop("slots", self._name, self._slot_reports.tick),
            own_loop("reconcile", self._name, self._reconcile, jitter=cryptographic_jitter),
            *([Ticking("remains", self._follow, REMAINS_SECONDS)] if self._old is not None else []),
        ]

    def run(self) -> int:
        """Until stopped; returns the exit code."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        beat_loop, *others = self._loops
        beat_loop.start()
        log.info("replica.started", extra={"replica": self._name, "pid": self._identity.pid})
        self._look_first()
        for loop in others:
            loop.start()
        self._leading.start()
        self._envelope.sample()
        self._driver.start()
        self._listener.start()
        # This thread now only waits. Kept open, its connection would be dead after a restart of the database, and the
        # goodbye would fail: no lease handed back, and a peer waiting for this replica's silence.
        connection.close()
        while not self._asked.stop.wait(0.2) and not self._dead.is_set():
            pass
        return self._abandon() if self._dead.is_set() else self._goodbye()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """The first asks for a clean stop, the second for one without waiting for the work."""
        if self._asked.stop.is_set():
            self._asked.now.set()
        self._asked.stop.set()

    def _beat(self) -> None:
        if os.getpid() != self._identity.pid:
            return  # a forked child does not live in its parent's place (rule L10)
        stale = conf().replica_stale_seconds
        if self._driver.wedged_seconds() > stale / 2:
            # A wedged driver must not look alive: its runs could never be taken (rule R2).
            log.error("replica.wedged", extra={"replica": self._name})
            return
        asked = now()
        if beat(self._replica.pk) is None:
            log.error("replica.declared_dead", extra={"replica": self._name})
            self._dead.set()
        elif self._fence is not None:
            self._fence.vouched(asked)

    def _look_first(self) -> None:
        """Before anything is claimed. In a thread of its own, for a daemon may be silent and a stop must not wait."""
        look = threading.Thread(target=self._first_look, name="first-look", daemon=True)
        look.start()
        while look.is_alive() and not self._asked.stop.is_set():
            look.join(0.1)

    def _first_look(self) -> None:
        """What fails here is looked at again by the loop: it never keeps a boot (R11)."""
        try:
            self._reconcile()
        except DatabaseError:
            log.exception("recovery.first_look_failed")
        finally:
            connection.close()

    def _reconcile(self) -> None:
        if self._asked.stop.is_set():
            return  # what it adopted or claimed now, it would soon leave to others again
        report: Report = reconcile(
            claimant=str(self._replica.incarnation),
            by=self._name,
            self_id=self._replica.pk,
            machine=self._identity.machine,
            adopt=self._legacy.adopt,
            sweep=self._legacy.sweep,
        )
        if report.did_something() or report.error:
            log.info("recovery.pass", extra={"report": report.as_dict()})

    def _goodbye(self) -> int:
        log.info("replica.draining", extra={"replica": self._name})
        self._leading.stop()
        self._listener.stop()
        deadline = time.monotonic() + conf().drain_seconds
        drained = False
        while not drained and not self._asked.now.is_set() and time.monotonic() < deadline:
            drained = self._driver.drain(0.5)
        if not drained:
            drained = self._driver.stop_now(SETTLED_SECONDS)
        if self._old is not None:
            drained = self._old.end(SETTLED_SECONDS) and drained
        for loop in self._loops:
            loop.stop()
        self._executor.slots.close()
        connection.close()  # the drain may have been long, and the database restarted meanwhile
        try:
            self._slot_reports.leave()
            left = leave(self._replica.pk)
        except DatabaseError:
            log.exception("replica.leave_failed")
            left = False
        log.info("replica.stopped", extra={"replica": self._name, "drained": drained, "left": left})
        connection.close()
        return 0 if drained and left else 1

    def _abandon(self) -> int:
        """Declared dead: nothing is written under this incarnation any more. Its runs are the next one's matter."""
        self._control.silence()
        self._leading.stop()
        self._listener.stop()
        for loop in self._loops:
            loop.stop()
        if self._old is not None:
            self._old.end(SETTLED_SECONDS)
        log.warning("replica.abandons", extra={"replica": self._name, "held": len(self._driver.held)})
        connection.close()
        return EXIT_DECLARED_DEAD

    def remains(self) -> Remains:
        """What this incarnation still executes, after it found itself declared dead."""
        remains = Remains(self._driver, self._keeper, self._executor.name)
        remains.begin()
        return remains

    def _follow(self) -> None:
        if self._old is not None and self._old.tick():
            self._old.driver.drain(SETTLED_SECONDS)
            log.info("replica.remains_gone", extra={"replica": self._name})
            self._old = None


def _log_event(event: str, /, **fields: object) -> None:
    log.info(f"run.{event}", extra=fields)
