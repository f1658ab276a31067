"""What a dead replica left on this machine's daemon: adopted, or removed with proof (rules R10, R9).

The ledger decides who adopts: one compare-and-set under the run's row lock (T7), after a look at the daemon and before
any container is touched. Whom the row names then goes on with the container, see `HoldKeeper`; so an adopter that dies
right after the decision, or whose answer is lost, leaves nothing undecided.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from admission.drivers import Driver
from admission.services.runs import read_open_attempts
from admission.states import DriverKind, RunState
from controlplane.core.fencing import is_strict
from controlplane.core.identity import machine_id, proven_gone
from controlplane.core.sql import rows
from recovery import sql
from recovery.replica.executor import LABEL_DRIVER
from recovery.services.adopting import claim_orphans
from recovery.services.orphans import Dead, Finding, LeftoversRemain, Orphan
from runners.agent.assignment import RunKey
from runners.agent.executors.base import Executor, ExecutorError, Made
from runners.agent.labels import LABEL_ATTEMPT, LABEL_RUN

log = logging.getLogger(__name__)

Attempt = tuple[int, int]
"""(run, number)"""


class Legacy:
    """What is left of dead replicas here, as a living one deals with it."""

    def __init__(self, executor: Executor, driver: Driver, stopping: Callable[[], bool] = lambda: False) -> None:
        self._executor = executor
        self._driver = driver
        self._stopping = stopping

    def adopt(self, dead: Dead, orphans: Sequence[Orphan]) -> Mapping[RunKey, Finding]:
        """Look first: what still runs, or has ended with its output kept, goes on under this replica.

        Never what a merely silent process executes: it may wake. Not under strict fencing: its watchdog outlives it
        and removes everything at once. Beyond the slots too: it is executed anyway, and claims wait for room.
        """
        if is_strict() or not self._within_reach(dead):
            return {}
        started = [orphan for orphan in orphans if orphan.state == RunState.RUNNING]
        try:
            found = self._look(started)
        except ExecutorError as error:
            why = f"the daemon does not say what is left of it: {error}"
            return {orphan.key: Finding("deferred", why) for orphan in started}
        if self._stopping():
            # A silent daemon may have kept the look: what was adopted now, it would leave to others at once.
            return {orphan.key: Finding("deferred", f"{self._driver.name} stops") for orphan in started}
        there = [orphan for orphan in started if (orphan.run, orphan.attempt) in found]
        adopted = claim_orphans(self._driver, dead, there)
        log.info("recovery.adopted", extra={"replica": dead.name, "looked_at": len(started), "adopted": len(adopted)})
        why = f"its container goes on under {self._driver.name}"
        return {RunKey(*hold): Finding("adopted", why) for hold in adopted}

    def sweep(self, dead: Dead) -> None:
        """Remove what is left of it, but for what goes on under another replica.

        From another machine nothing can be removed: the excess is bounded by what the dead driver ran, as documented.
        Raises LeftoversRemain when something is not confirmed gone.
        """
        if not self._within_reach(dead):
            return
        try:
            labels = {LABEL_DRIVER: dead.incarnation}
            self._executor.sweep(labels, self._driven_on(dead, self._executor.look(labels)))
            for row in rows(sql.READ_HEIRLOOMS, {"dead": dead.id, "incarnation": dead.incarnation}):
                self._executor.sweep(labels_of(str(row["maker"]), row["id"], row["attempt"]))
        except ExecutorError as error:
            raise LeftoversRemain(f"what it executed could not be removed yet: {error}") from error

    def _within_reach(self, dead: Dead) -> bool:
        """Whether it was on this machine and is certainly gone. A paused process's containers are its own to stop,
        when it wakes and finds that its runs have moved on."""
        if dead.machine != machine_id() or dead.executor != self._executor.name:
            return False
        return proven_gone(machine=dead.machine, boot=dead.boot_id, pid=dead.pid, pid_start=dead.pid_start)

    def _look(self, orphans: Sequence[Orphan]) -> set[Attempt]:
        """Which of these have exactly one container that can be gone on with."""
        attempts = [(orphan.run, orphan.attempt) for orphan in orphans]
        makers = {(row["id"], row["attempt"]): row["maker"] for row in read_open_attempts(attempts)}
        made: dict[Attempt, list[Made]] = {}
        for maker in {maker for maker in makers.values() if maker is not None}:
            for each in self._executor.look({LABEL_DRIVER: str(maker)}):
                if makers.get((each.run, each.attempt)) == maker:
                    made.setdefault((each.run, each.attempt), []).append(each)
        return {attempt for attempt, found in made.items() if len(found) == 1 and found[0].adoptable}

    def _driven_on(self, dead: Dead, made: Sequence[Made]) -> set[str]:
        """The ids of those whose attempt is open under another driver: not leftovers."""
        attempts = {(each.run, each.attempt): each.id for each in made}
        return {
            attempts[row["id"], row["attempt"]]
            for row in read_open_attempts(list(attempts))
            if (row["driver_kind"], row["driver_id"]) != (DriverKind.REPLICA, dead.id)
        }


def labels_of(maker: str, run: int, attempt: int) -> dict[str, str]:
    """By which the container of an attempt is found, whoever drives it now."""
    return {LABEL_DRIVER: maker, LABEL_RUN: str(run), LABEL_ATTEMPT: str(attempt)}
