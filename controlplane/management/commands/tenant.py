"""Verbs over one tenant, by hand."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from admission.models import Tenant
from admission.services import quotas
from admission.services.deleting import delete_tenant
from admission.services.tenants import get_tenant, pause_tenant, resume_tenant
from controlplane.core.errors import DomainError
from controlplane.management.asking import confirm, moment, why
from controlplane.management.commands.step_down import shell_actor
from controlplane.management.server import refuse_unless_ready


class Command(BaseCommand):
    """`manage.py tenant pause|resume|quota|delete SLUG --reason …`."""

    help = "Pause, resume or delete a tenant, or set its quota (audited)."

    def add_arguments(self, parser: CommandParser) -> None:
        """Which verb, which tenant."""
        parser.add_argument("verb", choices=("pause", "resume", "quota", "delete"))
        parser.add_argument("slug")
        parser.add_argument("--reason", required=True, help="For the audit log; of a pause also its note.")
        parser.add_argument("--until", default="", help="Of a pause: resume by itself then (2030-01-31T08:00:00Z).")
        parser.add_argument("--limit", default="", help="The new quota, a whole number; 'none' removes it.")
        parser.add_argument("--yes", action="store_true", help="Of a quota: do not ask.")
        parser.add_argument("--drain", action="store_true", help="Of a deletion: cancel, wait, then delete.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Do it, say what became of it."""
        refuse_unless_ready()
        try:
            tenant = get_tenant(options["slug"])
            said = getattr(self, f"_{options['verb']}")(tenant, options)
        except DomainError as refusal:
            raise CommandError(str(refusal)) from refusal
        self.stdout.write(f"{tenant.slug}: {said}")

    def _pause(self, tenant: Tenant, options: dict[str, Any]) -> str:
        until = moment(options["until"]) if options["until"] else None
        paused = pause_tenant(tenant, actor=shell_actor(), reason=why(options["reason"]), resume_at=until)
        return "paused" if paused else "was paused already"

    def _resume(self, tenant: Tenant, options: dict[str, Any]) -> str:
        resumed = resume_tenant(tenant, actor=shell_actor(), reason=why(options["reason"]))
        return "resumed" if resumed else "was not paused"

    def _quota(self, tenant: Tenant, options: dict[str, Any]) -> str:
        limit, actor, reason = options["limit"], shell_actor(), why(options["reason"])
        if not limit:
            raise CommandError("Which quota? Give --limit NUMBER, or --limit none.")
        if limit == "none":
            confirm(f"remove the quota of {tenant.slug}", 1, yes=options["yes"])
            removed = quotas.remove_quota(tenant, actor=actor, reason=reason)
            return removed.sentence() if removed else "had no quota"
        seen = quotas.preview_quota(tenant, limit)
        confirm(f"set the quota of {tenant.slug}: {seen.sentence()}", 1, yes=options["yes"])
        # What was seen is what is changed.
        return quotas.set_quota(tenant, limit, actor=actor, reason=reason, expected=(seen.before,)).sentence()

    def _delete(self, tenant: Tenant, options: dict[str, Any]) -> str:
        drain = options["drain"]
        gone = delete_tenant(tenant, actor=shell_actor(), reason=why(options["reason"]), drain=drain)
        return "deleted" if gone else "takes no more work; it goes when its own has ended"
