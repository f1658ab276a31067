"""A replica's passes over the physical slots, for operators to see and to ask for (rules P10, P15, O1)."""

from __future__ import annotations

from admission.physical.entitlement import Entitlement
from admission.services.physical import PassReport, forget_reports, reconcile_number, report_pass
from runners.agent.clock import now
from runners.agent.executors.slots import SlotKeeper
from runners.agent.physical import passes
from runners.agent.physical.keeper import PhysicalKeeper


class SlotReports:
    """Writes what the latest pass found, and has one made when an operator asked. Without a limit: nothing."""

    def __init__(self, slots: SlotKeeper, process: str, machine: str) -> None:
        self._keeper = slots if isinstance(slots, PhysicalKeeper) else None
        self._process = process
        self._machine = machine
        self._written: passes.PassReport | None = None
        self._asked = self._seen = 0
        self._asked_at = now()

    def tick(self) -> None:
        """One look: a statement each if nothing is new."""
        if self._keeper is None:
            return
        self._follow(self._keeper, reconcile_number(self._keeper.entitlement))
        last = self._keeper.last_pass
        if last is not None and last is not self._written:
            self._write(self._keeper.entitlement, last)
            self._written = last

    def _follow(self, keeper: PhysicalKeeper, number: int) -> None:
        """Only a pass that began after the request was read answers it."""
        if number > self._asked:
            self._asked, self._asked_at = number, now()
            keeper.pass_now()

    def _write(self, entitlement: Entitlement, last: passes.PassReport) -> None:
        if last.began_at >= self._asked_at:
            self._seen = self._asked
        running, created = last.containers.get("running", 0), last.containers.get("created", 0)
        report_pass(
            entitlement,
            PassReport(
                process=self._process,
                machine=self._machine,
                running=running,
                created=created,
                other=sum(last.containers.values()) - running - created,
                without_token=last.without_token,
                without_container=last.without_container,
                took_seconds=last.took_seconds,
                error="; ".join(last.problems),
                reconcile_seen=self._seen,
            ),
        )

    def leave(self) -> None:
        """The process ends."""
        if self._keeper is not None:
            forget_reports(self._keeper.entitlement, self._process)
