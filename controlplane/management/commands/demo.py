"""The demo batch. Internal to `up`, which gives it the tenants' tokens in its environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from controlplane.demo.batch import Demo
from controlplane.demo.humaneval import PROBLEMS
from controlplane.processes import guarded
from runners.agent.signalled import Signalled

OBSERVER_SECONDS = 10.0


class Command(BaseCommand):
    """Prints JSON lines: progress, then one summary."""

    help = "Submit the demo batch over REST, watch it end, and print what was seen against what must be."

    def add_arguments(self, parser: CommandParser) -> None:
        """Where the fleet is."""
        parser.add_argument("--url", required=True)
        parser.add_argument("--docker-socket", default="")
        parser.add_argument("--problems", type=int, default=PROBLEMS)
        parser.add_argument("--long-run", action="store_true", help="Submit the tour's two-minute run as well.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Submit, watch, compare."""
        stop = Signalled()
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        tenants = json.loads(os.environ.pop("WHARFINGER_DEMO_TENANTS"))
        demo = Demo(options["url"], tenants, self._say, problems=options["problems"])
        observer = _start_observer(options["docker_socket"], list(tenants))
        begun = time.monotonic()
        try:
            demo.submit()
            self._say("submitted", runs=sum(len(batch.runs) for batch in demo.batches))
            if options["long_run"]:
                self._say("long_run", run=demo.submit_long_run())
            ended = demo.wait(stop.is_set)
        finally:
            observed = _stop_observer(observer)
        if ended:
            self._say("summary", **demo.summary(observed, time.monotonic() - begun))

    def _say(self, event: str, **fields: Any) -> None:
        self.stdout.write(json.dumps({"event": event, **fields}))
        self.stdout.flush()


def _start_observer(docker_socket: str, tenants: list[str]) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "controlplane.demo.observer", "--docker-socket", docker_socket, *tenants]
    return subprocess.Popen(guarded(argv, signal.SIGTERM), stdout=subprocess.PIPE)


def _stop_observer(observer: subprocess.Popen[bytes]) -> dict[str, Any]:
    observer.terminate()
    report, _ = observer.communicate(timeout=OBSERVER_SECONDS)
    seen: dict[str, Any] = json.loads(report)
    return seen
