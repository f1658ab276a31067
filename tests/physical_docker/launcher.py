"""A process of an instance, told what to do over standard input, that tells what happens on standard output.

It goes through the one function that makes execution containers, with the real keeper. Two places where a launcher is
suspended in practice by chance can be met here at will: before and after the registration.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict
from typing import Any

from admission.spec import parse_spec
from runners.agent.assignment import Assignment
from runners.agent.clock import now
from runners.agent.executors.base import ExecutorError
from runners.agent.executors.docker import DockerExecutor
from runners.agent.executors.docker_adapter import DockerAdapter
from runners.agent.lifecycle import NotStarted
from runners.agent.physical.building import make_keeper
from runners.agent.physical.keeper import Times

_lock = threading.Lock()


def tell(name: str, /, **fields: object) -> None:
    with _lock:
        sys.stdout.write(json.dumps({"event": name, "at": now(), **fields}, default=str) + "\n")
        sys.stdout.flush()


class Launcher:
    def __init__(self, given: dict[str, Any]) -> None:
        self.image = given["image"]
        self.pause_at = given.get("pause_at", "")
        self.adapter = DockerAdapter(given.get("endpoint"))
        self.keeper: Any = make_keeper(os.environ, self.adapter, Times(**given["times"]))
        self.executor = DockerExecutor(self.adapter, slots=self.keeper, place_seconds=given.get("wait", 600.0))
        self.cancelled: set[int] = set()
        self.executions: dict[int, Any] = {}
        if self.pause_at:
            self._pause_at_registration()

    def _pause_at_registration(self) -> None:
        enter = self.keeper.enter

        def entered(labels: Any) -> Any:
            place = enter(labels)
            if place is not None:
                register = place.register

                def paused(container: str) -> None:
                    if self.pause_at == "created":
                        self._suspend(container)
                    register(container)
                    if self.pause_at == "registered":
                        self._suspend(container)

                place.register = paused
            return place

        self.keeper.enter = entered

    def _suspend(self, container: str) -> None:
        tell("suspended", container=container)
        os.kill(os.getpid(), signal.SIGSTOP)

    def run(self, number: int, command: list[str], grace: float) -> None:
        spec = parse_spec({"image": self.image, "command": command, "stop_grace_seconds": grace})
        given = Assignment(run=number, epoch=1, attempt=1, tenant="t", spec=spec)
        try:
            execution = self.executor.start(given, lambda data: None, {}, lambda: self._ask(number))
            self.executions[number] = execution
            if number in self.cancelled:
                execution.stop("cancelled")
            tell("made", run=number, container=execution.container)
            end = execution.wait(None)
            tell("ended", run=number, code=end.code, reason=end.reason, detail=end.detail)
            self._remove(number, execution)
        except ExecutorError as error:
            tell("refused", run=number, reason=error.reason, error=str(error))
        tell("done", run=number)

    def _remove(self, number: int, execution: Any) -> None:
        while True:
            try:
                execution.remove()
            except ExecutorError as error:
                tell("remove_failed", run=number, error=str(error))
            else:
                return

    def _ask(self, number: int) -> None:
        if number in self.cancelled:
            raise NotStarted("cancelled", "cancelled")

    def obey(self, order: dict[str, Any]) -> None:
        if order["do"] == "run":
            arguments = (order["run"], order["command"], order.get("grace", 0.5))
            threading.Thread(target=self.run, args=arguments, daemon=True).start()
        elif order["do"] == "cancel":
            self.cancelled.add(order["run"])
            if order["run"] in self.executions:
                self.executions[order["run"]].stop("cancelled")
        elif order["do"] == "free":
            tell("free", places=self.keeper.free())


def report(keeper: Any) -> None:
    told = None
    while True:
        last = getattr(keeper, "last_pass", None)
        if last is not told:
            told = last
            tell("report", **asdict(last))
        time.sleep(0.05)


def main() -> None:
    try:
        launcher = Launcher(json.loads(sys.argv[1]))
        threading.Thread(target=report, args=[launcher.keeper], daemon=True).start()
        launcher.keeper.start(tell)
    except ExecutorError as error:
        tell("cannot_start", error=str(error))
        sys.exit(78)
    tell("ready", pid=os.getpid(), owner=getattr(launcher.keeper, "owner", ""))
    for line in sys.stdin:
        launcher.obey(json.loads(line))


if __name__ == "__main__":
    main()
