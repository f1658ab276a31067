"""Limits of concurrency keys and harnesses, by hand."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from admission.models import Counter
from admission.services.limits import list_limits, set_harness_capacity, set_key_limit
from admission.services.tenants import get_tenant
from controlplane.core.errors import DomainError
from controlplane.management.asking import why
from controlplane.management.commands.step_down import shell_actor
from controlplane.management.server import refuse_unless_ready

MOST = 1000


class Command(BaseCommand):
    """`manage.py limits`: list them; `--key` or `--harness` with `--set` and `--reason` changes one."""

    help = "List the limits of concurrency keys and harnesses, or set one (audited)."

    def add_arguments(self, parser: CommandParser) -> None:
        """Which one, and its new value."""
        parser.add_argument("--tenant", default="", help="Slug: list only its keys; whose --key it is.")
        which = parser.add_mutually_exclusive_group()
        which.add_argument("--key", default="", help="A concurrency key of the tenant.")
        which.add_argument("--harness", default="", help="A harness.")
        parser.add_argument("--set", default="", metavar="LIMIT", help="The new limit; 'none' unbounds a harness.")
        parser.add_argument("--reason", default="", help="For the audit log.")
        parser.add_argument("--json", action="store_true", help="Print one JSON object.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Set, or list."""
        refuse_unless_ready()
        try:
            if options["set"]:
                self._set(options)
            else:
                self._list(options)
        except DomainError as refusal:
            raise CommandError(str(refusal)) from refusal

    def _set(self, options: dict[str, Any]) -> None:
        actor, reason = shell_actor(), why(options["reason"])
        if options["harness"]:
            capacity = None if options["set"] == "none" else options["set"]
            change = set_harness_capacity(options["harness"], capacity, actor=actor, reason=reason)
        elif options["key"] and options["tenant"]:
            tenant = get_tenant(options["tenant"])
            change = set_key_limit(tenant, options["key"], options["set"], actor=actor, reason=reason)
        else:
            raise CommandError("Which limit? Give --harness NAME, or --tenant SLUG and --key KEY.")
        said = {"before": change.before, "limit": change.limit, "in_flight": change.in_flight}
        self.stdout.write(json.dumps(said) if options["json"] else change.sentence())

    def _list(self, options: dict[str, Any]) -> None:
        tenant = get_tenant(options["tenant"]) if options["tenant"] else None
        found = [_shown(counter) for counter in list_limits(tenant).order_by("scope", "key")[:MOST]]
        if options["json"]:
            self.stdout.write(json.dumps({"limits": found}))
        for limit in found if not options["json"] else ():
            bound = "no limit" if limit["limit"] is None else limit["limit"]
            self.stdout.write(f"{limit['scope']}\t{limit['tenant']}\t{limit['key']}\t{limit['in_flight']}\t{bound}")


def _shown(counter: Counter) -> dict[str, Any]:
    own = counter.key.partition(":")[2] if counter.tenant is not None else counter.key
    tenant = counter.tenant.slug if counter.tenant is not None else ""
    return {
        "scope": counter.scope,
        "tenant": tenant,
        "key": own,
        "in_flight": counter.in_flight,
        "limit": counter.limit,
    }
