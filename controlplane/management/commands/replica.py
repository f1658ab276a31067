"""Run one replica of the control plane."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.core.conf import conf
from controlplane.core.errors import DomainError
from controlplane.management.server import refuse_unless_ready
from recovery.replica.process import run_replica
from runners.agent.executors.base import ExecutorError


class Command(BaseCommand):
    """`manage.py replica`: SIGTERM drains, a second one stops at once."""

    help = "Run one replica: it beats, admits and executes runs, sweeps deadlines and reconciles dead peers."

    def add_arguments(self, parser: CommandParser) -> None:
        """Identity."""
        parser.add_argument("--id", default="", help="Pinned identity; default: CONTROLPLANE_REPLICA_ID.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run until stopped."""
        refuse_unless_ready()
        try:
            code = run_replica(options["id"] or conf().replica_id)
        except (DomainError, ExecutorError, ValueError) as error:
            raise CommandError(str(error)) from error
        sys.exit(code)
