"""Look for what must never be."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from admission.services.readings import read_drift
from controlplane.management.server import refuse_unless_ready


class Command(BaseCommand):
    """`manage.py doctor`: exit code 1 on any violation."""

    help = "Check the ledger's invariants: every counter equals the weights of its permits."

    def add_arguments(self, parser: CommandParser) -> None:
        """How to say it."""
        parser.add_argument("--json", action="store_true", help="Print the findings as one JSON object.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Read, report."""
        refuse_unless_ready()
        drift = read_drift()
        if options["json"]:
            self.stdout.write(json.dumps({"drift": [asdict(d) for d in drift]}))
        elif not drift:
            self.stdout.write("Conserved: every counter equals the sum of its permits.")
        for d in drift if not options["json"] else ():
            self.stdout.write(f"{d.scope} {d.key}: counter {d.in_flight}, permits {d.permits}")
        if drift:
            sys.exit(1)
