"""Reconcile dead replicas once, by hand or at boot."""

from __future__ import annotations

import json
import sys
import uuid
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from controlplane.management.server import refuse_unless_ready
from recovery.services.reconcile import reconcile

EXIT_UNREADABLE = 3


class Command(BaseCommand):
    """`manage.py recover`: settles and requeues, never drives, and touches nothing that lives."""

    help = "Reclaim the runs of replicas that are gone. Safe at any time: a living replica's work is never touched."

    def add_arguments(self, parser: CommandParser) -> None:
        """What to do and how to say it."""
        parser.add_argument("--dry-run", action="store_true", help="Say what would be done; change nothing.")
        parser.add_argument("--json", action="store_true", help="Print the report as one JSON object.")

    def handle(self, *args: Any, **options: Any) -> None:
        """One pass."""
        refuse_unless_ready()
        report = reconcile(claimant=str(uuid.uuid4()), by="manage.py recover", dry_run=options["dry_run"])
        if options["json"]:
            self.stdout.write(json.dumps(report.as_dict()))
        else:
            self._tell(report.as_dict())
        if report.error:
            sys.exit(EXIT_UNREADABLE)

    def _tell(self, report: dict[str, Any]) -> None:
        for name in ("requeued", "interrupted", "cancelled", "deferred", "expired_claims"):
            self.stdout.write(f"{name.replace('_', ' ')}: {report[name]}")
        for name in report["finished"]:
            self.stdout.write(f"finished with replica {name}")
        for left in report["left_alone"]:
            self.stdout.write(f"left alone: {left['replica']} ({left['why']})")
        if report["error"]:
            self.stderr.write(report["error"])
