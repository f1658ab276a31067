"""The physical slots of this instance, by hand."""

from __future__ import annotations

import json
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from admission.api.physical import described
from admission.physical.entitlement import Entitlement
from admission.physical.results import Holder
from admission.services.physical import SlotsView, read_slots
from controlplane.management.server import refuse_unless_ready


class Command(BaseCommand):
    """`manage.py slots`: exit code 1 where the slots cannot be read, are locked down, or differ from what is there."""

    help = "Show the physical slots: limit, holders, who waits, the latest passes, drift."

    def add_arguments(self, parser: CommandParser) -> None:
        """How to say it."""
        parser.add_argument("--json", action="store_true", help="Print one JSON object.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Show."""
        refuse_unless_ready()
        view = read_slots()
        if options["json"]:
            self.stdout.write(json.dumps(described(view), default=str))
        else:
            self._show(view)
        config = view.snapshot.config if view.snapshot else None
        if view.error or view.drift or (config is not None and config.lockdown_id):
            sys.exit(1)

    def _show(self, view: SlotsView) -> None:
        if not isinstance(view.entitlement, Entitlement):
            self.stdout.write(view.error or "No physical limit is set: executions are not counted.")
            return
        if view.snapshot is None:
            self.stderr.write(view.error)
        else:
            config, counts = view.snapshot.config, view.snapshot.counts
            limit = f"{config.limit} (generation {config.generation})" if config else "not initialised yet"
            self.stdout.write(
                f"limit {limit}: {counts.reserved} reserved, {counts.running} running, "
                f"{counts.recovering} recovering; {counts.waiting} waiting"
            )
            if config is not None and config.lockdown_id:
                self.stderr.write(f"LOCKDOWN for {config.lockdown_age_seconds:.0f} s: {config.lockdown_reason}")
            for holder in view.snapshot.holders:
                self.stdout.write(_line(holder))
        for process in view.processes:
            error = f", last error: {process.last_error}" if process.last_error else ""
            seen = f"{process.existing} containers {process.age_seconds:.0f} s ago"
            self.stdout.write(f"pass of {process.process} on {process.machine}: {seen}{error}")
        for each in view.drift:
            self.stderr.write(f"DRIFT {each}")


def _line(holder: Holder) -> str:
    state = "recovering" if holder.recovering else f"{holder.state}, {holder.deadline_seconds:.0f} s left"
    container = (holder.container_id or "no container yet")[:16]
    return f"  {holder.run or holder.token}: {state}, {container}, held {holder.age_seconds:.0f} s by {holder.owner}"
