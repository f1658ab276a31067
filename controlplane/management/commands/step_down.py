"""Ask the leader to hand its lease back."""

from __future__ import annotations

import getpass
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.core.audit import Actor
from controlplane.core.errors import DomainError
from controlplane.management.asking import why
from leadership.election import LOOPS
from leadership.services.operating import step_down


class Command(BaseCommand):
    """`manage.py step_down --reason …`."""

    help = "Ask the leader to step down. It does so within a second; a stuck one is replaced when its lease ends."

    def add_arguments(self, parser: CommandParser) -> None:
        """Whose lease, and why."""
        parser.add_argument("--role", default=LOOPS, help=f"Default: {LOOPS}.")
        parser.add_argument("--reason", required=True, help="For the audit log and the history of terms.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Ask."""
        try:
            asked = step_down(options["role"], actor=shell_actor(), reason=why(options["reason"]))
        except DomainError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"Asked {asked.holder_name} to end term {asked.term} of {asked.role}.")


def shell_actor() -> Actor:
    """Who typed it, for the audit log."""
    return Actor(f"{getpass.getuser()} (shell)")
