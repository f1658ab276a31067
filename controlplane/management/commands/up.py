"""The whole fleet with one command."""

from __future__ import annotations

import json
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.demo.humaneval import PROBLEMS
from controlplane.embedded.directories import EmbeddedError
from controlplane.processes import ProcessError
from controlplane.up.fleet import Fleet, refuse_taken_port
from controlplane.up.options import Options, UpError, choose_execution
from controlplane.up.services import Services
from controlplane.up.show import make_show
from controlplane.up.summary import print_summary

DEFAULT_PORT = 8000
INTERRUPTED = 130
MOST_CHILDREN = 32


class Command(BaseCommand):
    """`manage.py up`: databases, web server, replicas, queue cluster, runners, and the demo batch."""

    help = (
        "Run the whole fleet on this machine and submit the demo batch. Ctrl-C stops everything cleanly. "
        "Uses DATABASE_URL and REDIS_URL where set, else the embedded PostgreSQL and Valkey."
    )
    # It starts the database: nothing may ask for one before.
    requires_system_checks: list[str] = []
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        """The pinned interface (rule X2)."""
        parser.add_argument("--replicas", type=int, default=2, help="Control-plane replicas (default 2).")
        parser.add_argument("--runners", type=int, default=1, help="Agents that work over REST (default 1).")
        parser.add_argument(
            "--executor",
            choices=("auto", "docker", "process"),
            default="auto",
            help="How runs are executed; auto: docker where a daemon answers, else process (default).",
        )
        parser.add_argument(
            "--port", type=int, default=DEFAULT_PORT, help=f"Web server's port (default {DEFAULT_PORT})."
        )
        parser.add_argument("--once", action="store_true", help="End after the demo batch, with a summary.")
        parser.add_argument("--json", action="store_true", help="Print the summary as one JSON object.")
        parser.add_argument(
            "--problems",
            type=int,
            default=PROBLEMS,
            help=f"Only the first so many of the demo's {PROBLEMS} problems; the broken solutions stay.",
        )
        parser.add_argument("--no-demo", action="store_true", help="Submit nothing.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run until done or stopped."""
        chosen = _options(options)
        show = make_show()
        try:
            refuse_taken_port(chosen.port)
            execution = choose_execution(chosen.executor)
            with Services() as services:
                show.event("services", text=", ".join(services.names))
                fleet = Fleet(chosen, services, execution, show)
                code = fleet.run()
        except (UpError, EmbeddedError, ProcessError) as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            # Before the fleet was there to take the signal; what was started has been stopped on the way here.
            raise CommandError("stopped before the fleet was up", returncode=INTERRUPTED) from None
        finally:
            show.close()
        if fleet.summary is not None and chosen.once:
            if chosen.as_json:
                self.stdout.write(json.dumps(fleet.summary))
            else:
                print_summary(fleet.summary)
        sys.exit(code)


def _options(given: dict[str, Any]) -> Options:
    for name in ("replicas", "runners"):
        if not 0 <= given[name] <= MOST_CHILDREN:
            raise CommandError(f"--{name} must be from 0 to {MOST_CHILDREN}, not {given[name]}")
    if given["replicas"] + given["runners"] == 0:
        raise CommandError("with neither a replica nor a runner nothing would ever be executed")
    if not 0 <= given["problems"] <= PROBLEMS:
        raise CommandError(f"--problems must be from 0 to {PROBLEMS}, not {given['problems']}")
    if given["once"] and given["no_demo"]:
        raise CommandError("--once ends after the demo batch; with --no-demo there is none")
    return Options(
        replicas=given["replicas"],
        runners=given["runners"],
        executor=given["executor"],
        port=given["port"],
        once=given["once"],
        as_json=given["json"],
        demo=not given["no_demo"],
        problems=given["problems"],
    )
