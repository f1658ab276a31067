"""Verbs over runners, by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.core.errors import DomainError
from controlplane.management.asking import confirm, moment
from controlplane.management.commands.step_down import shell_actor
from controlplane.management.server import refuse_unless_ready
from runners.models import Runner
from runners.services import fleet
from runners.services.facts import read_runner_facts
from runners.services.rotation import rotate_token

MOST = 1000
VERBS = ("list", "pause", "resume", "drain", "revoke", "rotate")
DAY_HOURS = 24.0


class Command(BaseCommand):
    """`manage.py runner list | pause|resume|drain|revoke|rotate ID… --reason …`."""

    help = "List runners; pause, resume, drain or revoke some, or give one a new token (audited)."

    def add_arguments(self, parser: CommandParser) -> None:
        """Which verb, which runners."""
        parser.add_argument("verb", choices=VERBS)
        parser.add_argument("runners", nargs="*", type=int, metavar="ID")
        parser.add_argument("--reason", default="", help="For the audit log; of a pause also its note.")
        parser.add_argument("--until", default="", help="Of a pause: resume by itself then (2030-01-31T08:00:00Z).")
        parser.add_argument("--overlap-hours", type=float, default=DAY_HOURS, help="Of a rotation: the old one opens.")
        parser.add_argument("--yes", action="store_true", help="Do not ask.")
        parser.add_argument("--json", action="store_true", help="Of list: one JSON object.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Do it, say what became of it."""
        refuse_unless_ready()
        try:
            if options["verb"] == "list":
                self._list(as_json=options["json"])
            else:
                self._act(options)
        except DomainError as refusal:
            raise CommandError(str(refusal)) from refusal

    def _list(self, *, as_json: bool) -> None:
        modes = {runner.pk: runner for runner in Runner.objects.select_related("tenant")[:MOST]}
        found = [
            {
                "id": facts.id,
                "name": facts.name,
                "mode": _mode(modes[facts.id]),
                "live": facts.live,
                "heard_seconds_ago": facts.alive_seconds_ago,
                "held": facts.held,
                "slots": facts.slots,
                "tenant": str(modes[facts.id].tenant or ""),
            }
            for facts in read_runner_facts(MOST)
            if facts.id in modes
        ]
        if as_json:
            self.stdout.write(json.dumps({"runners": found}))
            return
        for one in found:
            heard = one["heard_seconds_ago"]
            ago = "never heard" if heard is None else f"heard {heard:.0f} s ago"
            whose = one["tenant"] or "shared"
            self.stdout.write(
                f"{one['id']}\t{one['name']}\t{one['mode']}\t{one['held']}/{one['slots']}\t{ago}\t{whose}"
            )

    def _act(self, options: dict[str, Any]) -> None:
        verb, ids = options["verb"], list(dict.fromkeys(options["runners"]))
        if not ids:
            raise CommandError("Which runners? Give their ids; manage.py runner list shows them.")
        if not options["reason"]:
            raise CommandError("Why? Give --reason; it goes to the audit log.")
        if verb == "rotate" and len(ids) > 1:
            raise CommandError("One runner at a time: its new token is shown once, to be taken to its machine.")
        held = {facts.id: facts.held for facts in read_runner_facts(MOST)}
        holding = sum(held.get(runner, 0) for runner in ids)
        asked = f"{verb} {len(ids)} runner{'' if len(ids) == 1 else 's'} holding {holding} runs"
        confirm(asked, len(ids), yes=options["yes"])
        act: Callable[[int, dict[str, Any]], str] = getattr(self, f"_{verb}")
        for runner in ids:
            self.stdout.write(f"runner {runner}: {act(runner, options)}")

    def _pause(self, runner: int, options: dict[str, Any]) -> str:
        until = moment(options["until"]) if options["until"] else None
        paused = fleet.pause_runner(runner, actor=shell_actor(), reason=options["reason"], resume_at=until)
        return "paused" if paused else "was paused already"

    def _resume(self, runner: int, options: dict[str, Any]) -> str:
        resumed = fleet.resume_runner(runner, actor=shell_actor(), reason=options["reason"])
        return "takes work again" if resumed else "was neither paused nor draining"

    def _drain(self, runner: int, options: dict[str, Any]) -> str:
        draining = fleet.drain_runner(runner, actor=shell_actor(), reason=options["reason"])
        return "drains" if draining else "was draining already"

    def _revoke(self, runner: int, options: dict[str, Any]) -> str:
        taken = fleet.revoke_runner(runner, actor=shell_actor(), reason=options["reason"])
        return "was revoked already" if taken is None else f"revoked; {taken} runs taken from it"

    def _rotate(self, runner: int, options: dict[str, Any]) -> str:
        seconds = 3600.0 * options["overlap_hours"]
        rotated = rotate_token(runner, actor=shell_actor(), reason=options["reason"], overlap_seconds=seconds)
        until = f"{rotated.old_until:%Y-%m-%d %H:%M:%S} UTC"
        return f"{rotated.token}\n(shown once; the old token opens until {until}, or until this one was used)"


def _mode(runner: Runner) -> str:
    for mode, at in (("revoked", runner.revoked_at), ("draining", runner.draining_at), ("paused", runner.paused_at)):
        if at is not None:
            return mode
    return "spent" if runner.spent_at is not None else "active"
