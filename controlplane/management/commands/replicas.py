"""Verbs over replicas, by hand. (`manage.py replica` is one.)"""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from admission.driver_facts import MOST_DRIVERS
from controlplane.core.errors import DomainError
from controlplane.management.asking import confirm
from controlplane.management.commands.step_down import shell_actor
from controlplane.management.server import refuse_unless_ready
from recovery.services.facts import read_replica_facts
from recovery.services.replicas import drain_replica, living_replica, resume_replica


class Command(BaseCommand):
    """`manage.py replicas list | drain|resume NAME… --reason …`."""

    help = "List replicas; drain some, or give them work again (audited)."

    def add_arguments(self, parser: CommandParser) -> None:
        """Which verb, which replicas."""
        parser.add_argument("verb", choices=("list", "drain", "resume"))
        parser.add_argument("names", nargs="*", metavar="NAME")
        parser.add_argument("--reason", default="", help="For the audit log; of a drain also its note.")
        parser.add_argument("--yes", action="store_true", help="Do not ask.")
        parser.add_argument("--json", action="store_true", help="Of list: one JSON object.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Do it, say what became of it."""
        refuse_unless_ready()
        if options["verb"] == "list":
            self._list(as_json=options["json"])
            return
        try:
            self._act(options)
        except DomainError as refusal:
            raise CommandError(str(refusal)) from refusal

    def _list(self, *, as_json: bool) -> None:
        found = [
            {
                "id": facts.id,
                "name": facts.name,
                "mode": "dead" if facts.gone else "draining" if facts.draining else "active",
                "live": facts.live,
                "heard_seconds_ago": facts.alive_seconds_ago,
                "held": facts.held,
                "slots": facts.slots,
            }
            for facts in read_replica_facts(MOST_DRIVERS)
        ]
        if as_json:
            self.stdout.write(json.dumps({"replicas": found}))
        for one in found if not as_json else ():
            heard = f"heard {one['heard_seconds_ago']:.0f} s ago"
            self.stdout.write(f"{one['name']}\t{one['mode']}\t{one['held']}/{one['slots']}\t{heard}")

    def _act(self, options: dict[str, Any]) -> None:
        verb, names = options["verb"], list(dict.fromkeys(options["names"]))
        if not names or not options["reason"]:
            raise CommandError("Give the names of the replicas and --reason; manage.py replicas list shows them.")
        found = [living_replica(name) for name in names]
        confirm(f"{verb} {len(found)} replica{'' if len(found) == 1 else 's'}", len(found), yes=options["yes"])
        act = drain_replica if verb == "drain" else resume_replica
        for replica in found:
            changed = act(replica, actor=shell_actor(), reason=options["reason"])
            said = {"drain": "drains", "resume": "takes work again"}[verb] if changed else "as it was"
            self.stdout.write(f"{replica.name}: {said}")
