"""Enrolment tokens, by hand."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from admission.services.tenants import get_tenant
from controlplane.core.errors import DomainError
from controlplane.management.asking import confirm, why
from controlplane.management.commands.step_down import shell_actor
from controlplane.management.server import refuse_unless_ready
from runners.services import enrolment
from runners.services.fleet import get_runner


class Command(BaseCommand):
    """`manage.py enrolment list | issue [options] | revoke ID… --reason …`."""

    help = "Issue, list and revoke the tokens with which machines enrol as runners (audited)."

    def add_arguments(self, parser: CommandParser) -> None:
        """Which verb, and what the token buys."""
        parser.add_argument("verb", choices=("list", "issue", "revoke"))
        parser.add_argument("tokens", nargs="*", type=int, metavar="ID")
        parser.add_argument("--name", default="", help="What the machines are.")
        parser.add_argument("--uses", type=int, default=1, help="Machines that may enrol.")
        parser.add_argument("--hours", type=float, default=1.0, help="Until it expires.")
        parser.add_argument("--tenant", default="", help="Slug of the only tenant whose work they take; none: shared.")
        parser.add_argument("--trust", action="append", default=[], metavar="trust.NAME=VALUE")
        parser.add_argument("--runner", type=int, help="The runner whose machine comes back with it.")
        parser.add_argument("--one-job", action="store_true", help="Its runners take one run and end.")
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
        found = [
            {
                "id": token.pk,
                "shown": token.shown,
                "name": token.name,
                "uses_left": token.uses_left,
                "expires_at": token.expires_at.isoformat(),
                "tenant": str(token.tenant or ""),
                "trust_labels": token.trust_labels,
            }
            for token in enrolment.open_enrolment_tokens()
        ]
        if options["json"]:
            self.stdout.write(json.dumps({"enrolment_tokens": found}))
        for one in found if not options["json"] else ():
            whose = one["tenant"] or "shared"
            self.stdout.write(
                f"{one['id']}\t{one['shown']}…\t{one['name']}\t{one['uses_left']} left\t{one['expires_at']}\t{whose}"
            )

    def _issue(self, options: dict[str, Any]) -> None:
        token, secret = enrolment.issue_enrolment_token(
            actor=shell_actor(),
            name=options["name"],
            uses=options["uses"],
            lifetime=enrolment.lifetime_of(options["hours"]),
            tenant=get_tenant(options["tenant"]) if options["tenant"] else None,
            trust_labels=enrolment.parse_labels(options["trust"]),
            runner=get_runner(options["runner"]) if options["runner"] is not None else None,
            one_job=options["one_job"],
            reason=why(options["reason"]),
        )
        if options["json"]:
            self.stdout.write(json.dumps({"id": token.pk, "token": secret}))
            return
        self.stdout.write(secret)
        self.stderr.write(f"enrolment token {token.pk}, shown once; on the machine: wharfinger runner enrol")

    def _revoke(self, options: dict[str, Any]) -> None:
        ids = list(dict.fromkeys(options["tokens"]))
        if not ids or not options["reason"]:
            raise CommandError("Give the ids of the tokens and --reason; manage.py enrolment list shows them.")
        found = [enrolment.get_enrolment_token(one) for one in ids]
        confirm(f"revoke {len(found)} enrolment token{'' if len(found) == 1 else 's'}", len(found), yes=options["yes"])
        for token in found:
            revoked = enrolment.revoke_enrolment_token(token, actor=shell_actor(), reason=options["reason"])
            self.stdout.write(f"enrolment token {token.pk}: {'revoked' if revoked else 'bought nothing any more'}")
