"""Reconcile dead replicas once, by hand or at boot."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from controlplane.core.conf import conf
from controlplane.core.identity import current_process
from controlplane.management.server import refuse_unless_ready
from recovery.services.by_hand import recover
from recovery.services.reporting import COUNTED, Report

EXIT_UNREADABLE = 3


class Command(BaseCommand):
    """`manage.py recover`: settles and requeues, never drives, and touches nothing that lives."""

    help = (
        "Reclaim the runs of replicas that are gone. Safe at any time: a living replica's work is never touched. "
        f"Exit codes: 0 a pass was made (what was put off, and why, is in the report); 1 refused, nothing was looked "
        f"at; {EXIT_UNREADABLE} the heartbeats cannot be read, so everyone may be alive: nothing was reclaimed."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """What to do and how to say it."""
        parser.add_argument("--dry-run", action="store_true", help="Say what would be done; change nothing.")
        parser.add_argument("--json", action="store_true", help="Print the report as one JSON object.")

    def handle(self, *args: Any, **options: Any) -> None:
        """One pass."""
        refuse_unless_ready()
        report = recover(current_process(), pinned=conf().replica_id, dry_run=options["dry_run"])
        if options["json"]:
            self.stdout.write(json.dumps(report.as_dict()))
        else:
            for line in table(report):
                self.stdout.write(line)
        if report.error:
            self.stderr.write(report.error)
            sys.exit(EXIT_UNREADABLE)


def table(report: Report) -> Iterator[str]:
    """The report for people: each outcome with its count, then replicas."""
    yield f"{'outcome':<18}runs"
    for outcome in COUNTED:
        yield f"{outcome.label:<18}{getattr(report, outcome):>4}"
    if report.expired_claims:
        yield f"claims that ran out and were deleted: {report.expired_claims}"
    for name in report.finished:
        yield f"done with replica {name}"
    for left in report.left_alone:
        yield f"left alone: {left['replica']}: {left['why']}" if left["replica"] else f"left alone: {left['why']}"
