"""Forcing a permit free, by hand."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from admission.services.force_release import find_permits, force_release
from admission.services.tenants import get_tenant
from controlplane.core.errors import DomainError
from controlplane.management.asking import confirm, why
from controlplane.management.commands.step_down import shell_actor
from controlplane.management.server import refuse_unless_ready


class Command(BaseCommand):
    """`manage.py permit force-release PERMIT [--tenant SLUG] --reason …`."""

    help = "Take a permit from its holder: a run's with a takeover of the run, another system's by its id (audited)."

    def add_arguments(self, parser: CommandParser) -> None:
        """Which one, and why."""
        parser.add_argument("verb", choices=("force-release",))
        parser.add_argument("permit", help="run.attempt; with --tenant the id that another system gave it.")
        parser.add_argument("--tenant", default="", help="Slug, of a permit of another system.")
        parser.add_argument("--reason", required=True, help="For the audit log.")
        parser.add_argument("--yes", action="store_true", help="Do not ask.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Do it, say what became of it."""
        refuse_unless_ready()
        try:
            tenant = get_tenant(options["tenant"]) if options["tenant"] else None
            permits = find_permits(options["permit"], tenant)
            confirm(f"force-release {len(permits)} permits of {options['permit']}", len(permits), yes=options["yes"])
            forced = force_release(permits, actor=shell_actor(), reason=why(options["reason"]))
        except DomainError as refusal:
            raise CommandError(str(refusal)) from refusal
        self.stdout.write(f"{len(forced.taken)} runs taken over, {len(forced.released)} outside permits released")
        if forced.gone:
            self.stdout.write(f"{forced.gone} had changed hands or ended meanwhile")
