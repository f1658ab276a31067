"""Verbs over runs, by hand."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from admission.models import Run
from admission.services.runs import cancel_runs, requeue_runs
from admission.states import HOLDING, TERMINAL
from controlplane.core.errors import DomainError
from controlplane.management.asking import confirm, why
from controlplane.management.commands.step_down import shell_actor
from controlplane.management.server import refuse_unless_ready

MOST = 1000


class Command(BaseCommand):
    """`manage.py run cancel|requeue ID… --reason …`."""

    help = "Cancel runs, or take them from their drivers back into the queue (audited)."

    def add_arguments(self, parser: CommandParser) -> None:
        """Which verb, which runs."""
        parser.add_argument("verb", choices=("cancel", "requeue"))
        parser.add_argument("runs", nargs="+", type=int, metavar="ID")
        parser.add_argument("--reason", required=True, help="For the audit log.")
        parser.add_argument("--yes", action="store_true", help="Do not ask.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Do it, say what became of it."""
        refuse_unless_ready()
        ids = list(dict.fromkeys(options["runs"]))
        if len(ids) > MOST:
            raise CommandError(f"{len(ids)} runs at once; at most {MOST}.")
        open_runs = list(Run.objects.filter(pk__in=ids).exclude(state__in=TERMINAL).only("id", "state", "epoch"))
        confirm(f"{options['verb']} {len(open_runs)} of {len(ids)} runs", len(open_runs), yes=options["yes"])
        try:
            getattr(self, f"_{options['verb']}")(open_runs, why(options["reason"]))
        except DomainError as refusal:
            raise CommandError(str(refusal)) from refusal
        for run in sorted(set(ids) - {run.pk for run in open_runs}):
            self.stdout.write(f"run {run}: had ended, or is not there")

    def _cancel(self, runs: list[Run], reason: str) -> None:
        moved = cancel_runs([run.pk for run in runs], actor=shell_actor(), reason=reason)
        for run in runs:
            state = moved.get(run.pk)
            said = "had ended" if state is None else "cancelled" if state in TERMINAL else "asked to stop"
            self.stdout.write(f"run {run.pk}: {said}")

    def _requeue(self, runs: list[Run], reason: str) -> None:
        held = [(run.pk, run.epoch) for run in runs if run.state in HOLDING]
        taken = {ended.run: ended.state for ended in requeue_runs(held, actor=shell_actor(), reason=reason)}
        for run in runs:
            said = f"taken from its driver, {taken[run.pk]} now" if run.pk in taken else "with no driver"
            self.stdout.write(f"run {run.pk}: {said}")
