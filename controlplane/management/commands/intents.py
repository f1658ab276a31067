"""Effects outside the database that are to do or were given up, and having one tried again."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.core.errors import DomainError
from controlplane.management.asking import why
from controlplane.management.commands.step_down import shell_actor
from controlplane.management.server import refuse_unless_ready
from leadership.models import Intent
from leadership.services.intents import get_intent, retry_intent

MOST = 1000


class Command(BaseCommand):
    """`manage.py intents [--json]`, `manage.py intents --retry ID --reason …`."""

    help = "Show the mails and calls to others that are not done yet; or have one that was given up tried again."

    def add_arguments(self, parser: CommandParser) -> None:
        """What to do and how to say it."""
        parser.add_argument("--json", action="store_true", help="Print one JSON object.")
        parser.add_argument("--retry", type=int, metavar="ID", help="Have this one tried again at once.")
        parser.add_argument("--reason", default="", help="Why; for the audit log.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Show, or retry."""
        refuse_unless_ready()
        if options["retry"] is not None:
            self._retry(options["retry"], options["reason"])
            return
        found = list(Intent.objects.filter(done_at__isnull=True).order_by("-pk")[:MOST])
        if options["json"]:
            self.stdout.write(json.dumps({"intents": [_as_dict(intent) for intent in found]}, default=str))
            return
        for intent in found:
            state = "GIVEN UP" if intent.dead_at else f"next {intent.next_at:%H:%M:%S} UTC"
            self.stdout.write(f"{intent.pk}: {intent}, {intent.tries} tries, {state}: {intent.error}")

    def _retry(self, number: int, reason: str) -> None:
        reason = why(reason)
        try:
            intent = get_intent(number)
            retry_intent(intent, actor=shell_actor(), reason=reason)
        except DomainError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"Intent {number} ({intent}) is tried again.")


def _as_dict(intent: Intent) -> dict[str, object]:
    names = ("id", "kind", "key", "created_at", "next_at", "tries", "dead_at", "error")
    return {name: getattr(intent, name) for name in names}
