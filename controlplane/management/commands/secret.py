"""Secrets of tenants, by hand."""

from __future__ import annotations

import json
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from admission.services.tenants import get_tenant
from controlplane.core.errors import DomainError
from controlplane.management.asking import why
from controlplane.management.commands.step_down import shell_actor
from controlplane.management.server import refuse_unless_ready
from runners.services import secrets
from runners.services.sealing import Unreadable


class Command(BaseCommand):
    """`manage.py secret set|list|delete|reseal --tenant SLUG [--name NAME] --reason …`; values come by stdin."""

    help = "Set, list or delete a tenant's secrets, or encrypt all of them with the newest key (audited)."

    def add_arguments(self, parser: CommandParser) -> None:
        """Which verb, whose, which."""
        parser.add_argument("verb", choices=("set", "list", "delete", "reseal"))
        parser.add_argument("--tenant", default="", help="Slug. Of a list, all tenants without it.")
        parser.add_argument("--name", default="", help="The secret.")
        parser.add_argument("--reason", default="", help="For the audit log; all but a list need it.")
        parser.add_argument("--json", action="store_true", help="Of a list: print one JSON object.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Do it, say what became of it."""
        refuse_unless_ready()
        try:
            getattr(self, f"_{options['verb']}")(options)
        except (DomainError, Unreadable) as refusal:
            raise CommandError(str(refusal)) from refusal

    def _set(self, options: dict[str, Any]) -> None:
        tenant, name = self._named(options)
        reason = why(options["reason"])
        value = sys.stdin.read().removesuffix("\n")
        created = secrets.set_secret(tenant, name, value, actor=shell_actor(), reason=reason)
        self.stdout.write(f"{tenant.slug}/{name}: {'set' if created else 'has a new value'}")

    def _delete(self, options: dict[str, Any]) -> None:
        tenant, name = self._named(options)
        secrets.delete_secret(tenant, name, actor=shell_actor(), reason=why(options["reason"]))
        self.stdout.write(f"{tenant.slug}/{name}: deleted")

    def _list(self, options: dict[str, Any]) -> None:
        tenant = get_tenant(options["tenant"]) if options["tenant"] else None
        found = [
            {"tenant": one.tenant.slug, "name": one.name, "updated_at": one.updated_at.isoformat()}
            for one in secrets.list_secrets(tenant)
        ]
        if options["json"]:
            self.stdout.write(json.dumps({"secrets": found}))
        for one in found if not options["json"] else ():
            self.stdout.write("\t".join(one.values()))

    def _reseal(self, options: dict[str, Any]) -> None:
        done = secrets.reseal_secrets(actor=shell_actor(), reason=why(options["reason"]))
        self.stdout.write(f"{done} secrets are encrypted with the first key")

    @staticmethod
    def _named(options: dict[str, Any]) -> tuple[Any, str]:
        if not options["tenant"] or not options["name"]:
            raise CommandError("Which secret? Give --tenant SLUG and --name NAME.")
        return get_tenant(options["tenant"]), options["name"]
