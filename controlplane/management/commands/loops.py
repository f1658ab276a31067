"""Who leads, what recurs, and what is wrong."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.core.errors import DomainError
from controlplane.management.asking import why
from controlplane.management.commands.step_down import shell_actor
from controlplane.management.server import refuse_unless_ready
from leadership.selectors import LoopState, read_alarms, read_leases, read_loops
from leadership.services.operating import run_now


class Command(BaseCommand):
    """`manage.py loops`: exit code 1 while there is an alarm."""

    help = "Show the leader, every loop with its last run, and alarms; or run one loop now."

    def add_arguments(self, parser: CommandParser) -> None:
        """What to do and how to say it."""
        parser.add_argument("--json", action="store_true", help="Print one JSON object.")
        parser.add_argument("--run", metavar="LOOP", help="Send one extra run of this gated loop.")
        parser.add_argument("--reason", default="", help="Why it is run now; for the audit log.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Show, or run."""
        refuse_unless_ready()
        if options["run"]:
            self._run(options["run"], options["reason"])
            return
        leases, loops, alarms = read_leases(), read_loops(), read_alarms()
        if options["json"]:
            found = {
                "leases": [asdict(lease) for lease in leases],
                "loops": [asdict(loop) for loop in loops],
                "alarms": [asdict(alarm) for alarm in alarms],
            }
            self.stdout.write(json.dumps(found, default=str))
        else:
            for lease in leases:
                holder = f"{lease.holder_name}, {lease.seconds_left:.0f} s left" if lease.led else "nobody"
                self.stdout.write(f"{lease.role}: term {lease.term}, {holder}")
            for loop in loops:
                self.stdout.write(_line(loop))
            for alarm in alarms:
                self.stderr.write(f"ALARM {alarm.text}")
        if alarms:
            sys.exit(1)

    def _run(self, loop: str, reason: str) -> None:
        try:
            fire_at = run_now(loop, actor=shell_actor(), reason=why(reason))
        except DomainError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"Sent {loop} at {fire_at:%H:%M:%S}.")


def _line(loop: LoopState) -> str:
    last = "never" if loop.age_seconds is None else f"{loop.age_seconds:.0f} s ago"
    took = "" if loop.took_seconds is None else f", took {loop.took_seconds:.2f} s"
    where = f" on {loop.place}" if loop.place else ""
    return f"  {loop.loop} ({loop.gate}, every {loop.seconds:g} s): {loop.state or 'not seen'}, {last}{took}{where}"
