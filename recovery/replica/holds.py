"""Keeping a replica's own table and the ledger's rows the same (rule A10).

Each tick reads what the ledger says this replica holds. Admitted rows it does not know came with a lost reply: they
are taken up if there is room, else given back. Running rows it does not know were adopted (rule R10) where another
incarnation started them: it goes on with those. Others can only be given back. What it holds and the ledger does not
list any more has moved on: stopped, or let go. Pending cancels are seen here too.
"""

from __future__ import annotations

import json
import logging

from admission.services.runs import read_holds
from admission.spec import parse_spec
from admission.states import RunState
from controlplane.core.sql import Row
from recovery.replica.executor import LABEL_DRIVER
from runners.agent.assignment import Assignment, RunKey, Verdict
from runners.agent.clock import now
from runners.agent.driver import Driver
from runners.agent.logs import Stored
from runners.database_control import DatabaseControl
from runners.services.logs import stored_digest

log = logging.getLogger(__name__)


class HoldKeeper:
    """Compares once a tick."""

    def __init__(self, control: DatabaseControl, driver: Driver) -> None:
        self._control = control
        self._driver = driver
        self._rows: dict[RunKey, Row] = {}
        self._read_at = 0.0

    def tick(self) -> None:
        """One comparison; one query when nothing differs."""
        unknown = self._driver.reconcile(self._read)
        known = [key for key, row in self._rows.items() if row["cancel"] and key in set(self._driver.held)]
        if known:
            for key, verdict in self._control.heartbeat(known).items():
                self._driver.apply(key, verdict)
        if unknown:
            self._settle_unknown(unknown)

    def _read(self) -> set[RunKey]:
        self._read_at = now()
        self._rows = {RunKey(row["id"], row["epoch"]): row for row in read_holds(self._control.driver)}
        return set(self._rows)

    def _settle_unknown(self, unknown: list[RunKey]) -> None:
        room = self._driver.slots - len(self._driver.held)
        take: list[Assignment] = []
        adopted: list[Row] = []
        give: list[RunKey] = []
        for key in unknown:
            row = self._rows[key]
            if row["state"] == RunState.ADMITTED and len(take) < room:
                take.append(_assignment(row))
            elif self._is_adopted(row):
                adopted.append(row)
            else:
                give.append(key)
        counts = {"taken_up": len(take), "adopted": len(adopted), "given_back": len(give)}
        log.warning("replica.unknown_holds", extra=counts)
        self._driver.take_up(self._control.with_secrets(take))
        for row in adopted:
            self._take_over(row)
        if give:
            self._control.give_back(give, "held by this replica without its knowledge")

    def _is_adopted(self, row: Row) -> bool:
        own = self._control.driver.incarnation
        return row["state"] == RunState.RUNNING and row["maker"] is not None and row["maker"] != own

    def _take_over(self, row: Row) -> None:
        """Its time counts from its start, by the database; our clock was read before, so it can only end earlier."""
        maker = {LABEL_DRIVER: str(row["maker"])}
        found = stored_digest(row["id"], row["attempt"])
        stored = None if found is None else Stored(*found)
        assignment = self._control.with_hidden(_assignment(row))
        self._driver.take_over(assignment, maker, self._read_at + row["left"], stored)

    def follow(self) -> bool:
        """This incarnation was declared dead: stop each execution once its row has moved on. True: none is left.

        What a successor adopted under the same attempt is let go instead, see `Driver.apply`.
        """
        self._driver.reconcile(self._read)
        return not self._driver.held

    def abandon(self) -> None:
        """Stop everything but what a successor adopted, report nothing: this incarnation was declared dead."""
        for key in self._driver.held:
            self._driver.apply(key, Verdict.SUPERSEDED)


def _assignment(row: Row) -> Assignment:
    """Of a row. Secrets are not in it: what they hide after a lost reply or an adoption is added here."""
    return Assignment(
        run=row["id"],
        epoch=row["epoch"],
        attempt=row["attempt"],
        tenant=row["tenant"],
        spec=parse_spec(json.loads(row["spec"])),
    )
