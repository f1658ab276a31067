"""API tokens of tenants, by hand."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from admission.services import tenant_tokens as service
from admission.services.tenants import get_tenant, issue_token, revoke_token
from controlplane.core.errors import DomainError
from controlplane.management.asking import confirm, why
from controlplane.management.commands.step_down import shell_actor
from controlplane.management.server import refuse_unless_ready


class Command(BaseCommand):
    """`manage.py token list|issue|revoke SLUG …`."""

    help = "Issue, list and revoke a tenant's API tokens (audited)."

    def add_arguments(self, parser: CommandParser) -> None:
        """Which verb, whose tokens."""
        parser.add_argument("verb", choices=("list", "issue", "revoke"))
        parser.add_argument("slug", help="Of the tenant.")
        parser.add_argument("tokens", nargs="*", type=int, metavar="ID")
        parser.add_argument("--name", default="", help="What will use it.")
        parser.add_argument("--days", type=float, default=None, help="Until it expires; none: until it is revoked.")
        parser.add_argument("--reason", default="", help="For the audit log.")
        parser.add_argument("--yes", action="store_true", help="Do not ask.")
        parser.add_argument("--json", action="store_true", help="Of list and issue: one JSON object.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Do it, say what became of it."""
        refuse_unless_ready()
        try:
            getattr(self, f"_{options['verb']}")(options)
        except DomainError as refusal:
            raise CommandError(str(refusal)) from refusal

    def _list(self, options: dict[str, Any]) -> None:
        found = [service.described(token) for token in service.list_tokens(get_tenant(options["slug"]))]
        if options["json"]:
            self.stdout.write(json.dumps({"tokens": found}))
        for one in found if not options["json"] else ():
            until = one["expires_at"] or "until it is revoked"
            self.stdout.write(f"{one['id']}\t{one['shown']}…\t{one['name']}\t{one['status']}\t{until}")

    def _issue(self, options: dict[str, Any]) -> None:
        if not options["name"]:
            raise CommandError("What is it for? Give --name.")
        days = options["days"]
        expires_at = service.expiry(None if days is None else 86_400 * days)
        tenant = get_tenant(options["slug"])
        reason = why(options["reason"])
        token, secret = issue_token(tenant, options["name"], actor=shell_actor(), reason=reason, expires_at=expires_at)
        if options["json"]:
            self.stdout.write(json.dumps({"id": token.pk, "token": secret}))
            return
        self.stdout.write(secret)
        self.stderr.write(f"token {token.pk} of {tenant.slug}, shown once")

    def _revoke(self, options: dict[str, Any]) -> None:
        ids = list(dict.fromkeys(options["tokens"]))
        if not ids or not options["reason"]:
            raise CommandError("Give the ids of the tokens and --reason; manage.py token list shows them.")
        tenant = get_tenant(options["slug"])
        found = [service.get_token(tenant, one) for one in ids]
        confirm(f"revoke {len(found)} API token{'' if len(found) == 1 else 's'}", len(found), yes=options["yes"])
        for token in found:
            revoked = revoke_token(token, actor=shell_actor(), reason=options["reason"])
            self.stdout.write(f"token {token.pk}: {'revoked' if revoked else 'was revoked already'}")
