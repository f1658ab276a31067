"""Ask for a pass over the physical slots."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from admission.services.physical import reconcile_now
from controlplane.core.errors import DomainError
from controlplane.management.asking import why
from controlplane.management.commands.step_down import shell_actor
from controlplane.management.server import refuse_unless_ready


class Command(BaseCommand):
    """`manage.py physical_reconcile --reason …`."""

    help = "Ask every process of the instance to look through its containers and slots now."

    def add_arguments(self, parser: CommandParser) -> None:
        """Why."""
        parser.add_argument("--reason", required=True, help="For the audit log.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Ask."""
        refuse_unless_ready()
        try:
            number = reconcile_now(actor=shell_actor(), reason=why(options["reason"]))
        except DomainError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"Asked: request {number}. `manage.py slots` shows the passes.")
