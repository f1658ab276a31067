"""What recovery owes, and having one debt looked at now."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.core.errors import DomainError
from controlplane.management.asking import why
from controlplane.management.commands.step_down import shell_actor
from controlplane.management.server import refuse_unless_ready
from recovery.models import RecoveryDebt
from recovery.selectors import read_standing
from recovery.services.debts import retry_debt

MOST = 1000


class Command(BaseCommand):
    """`manage.py recovery_debts [--json]`, `manage.py recovery_debts --retry ID --reason …`."""

    help = "Show the runs of dead replicas that could not be decided yet; or have one looked at by the next pass."

    def add_arguments(self, parser: CommandParser) -> None:
        """What to do and how to say it."""
        parser.add_argument("--json", action="store_true", help="Print one JSON object.")
        parser.add_argument("--retry", type=int, metavar="ID", help="Have this debt looked at by the next pass.")
        parser.add_argument("--reason", default="", help="Why; for the audit log.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Show, or retry."""
        refuse_unless_ready()
        if options["retry"] is not None:
            self._retry(options["retry"], options["reason"])
            return
        standing = read_standing()
        found = list(RecoveryDebt.objects.filter(closed_at__isnull=True).order_by("next_at")[:MOST])
        if options["json"]:
            debts = [_as_dict(debt) for debt in found]
            self.stdout.write(json.dumps({**asdict(standing), "debts": debts}, default=str))
            return
        until = f"; a hold is in force until {standing.held_until:%H:%M:%S} UTC" if standing.held_until else ""
        self.stdout.write(f"{standing.open_debts} owed, {standing.escalated} escalated{until}")
        for debt in found:
            self.stdout.write(
                f"{debt.pk}: {debt}, {debt.attempts} attempts, next {debt.next_at:%H:%M:%S} UTC"
                f"{', ESCALATED' if debt.escalated_at else ''}: {debt.reason}"
            )

    def _retry(self, debt: int, reason: str) -> None:
        reason = why(reason)
        try:
            retried = retry_debt(debt, actor=shell_actor(), reason=reason)
        except DomainError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"Debt {debt} ({retried}) is looked at by the next pass.")


def _as_dict(debt: RecoveryDebt) -> dict[str, object]:
    names = ("id", "run_id", "epoch", "replica_name", "attempts", "reason", "opened_at", "next_at", "escalated_at")
    return {name: getattr(debt, name) for name in names}
