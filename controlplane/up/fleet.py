"""Bringing the fleet up, keeping it up, and taking it down without leaving a process or a container."""

from __future__ import annotations

import hashlib
import json
import queue
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from admission.physical.entitlement import Unrestricted, resolve
from controlplane.processes import guarded, send
from controlplane.supervisor import Event, Happened, Supervisor
from controlplane.up import children
from controlplane.up.options import Execution, Options, UpError
from controlplane.up.services import ServiceEvent, Services
from controlplane.up.show import Show
from runners.agent.signalled import Signalled

READY_SECONDS = 120.0
TICK_SECONDS = 0.1
DEMO_STOP_SECONDS = 20.0


class Fleet:
    """One `up`. Used by the main thread alone; the demo's lines come over a queue."""

    def __init__(self, options: Options, services: Services, execution: Execution, show: Show) -> None:
        self._options = options
        self._services = services
        self._execution = execution
        self._show = show
        self._env = services.child_environment(execution, options.port)
        self._logs = services.home.path / "logs"
        self._supervisor = Supervisor(self._logs, self._on_child)
        self._stopping = Signalled()
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._demo: subprocess.Popen[bytes] | None = None
        self.summary: dict[str, Any] | None = None

    def run(self) -> int:
        """Until the demo ended (`--once`) or a signal; returns the exit code."""
        signal.signal(signal.SIGINT, self._on_signal)
        signal.signal(signal.SIGTERM, self._on_signal)
        refuse_taken_port(self._options.port)
        self._run_command("migrate", "--no-input")
        facts = json.loads(self._run_command("bootstrap", "--runners", str(self._options.runners)))
        with self._services.told(self._env) as told:
            self._work(facts, told)
        if not self._options.once:
            return 0
        return 0 if self.summary is not None and self.summary["as_expected"] else 1

    def _work(self, facts: Mapping[str, Any], told: Path) -> None:
        try:
            self._start_children(facts)
            self._wait_until_ready()
            if not self._stopping.is_set():
                self._announce(facts, told)
                if self._options.demo:
                    self._start_demo(facts)
            self._look_after()
        finally:
            self._stop()

    # -- starting -----------------------------------------------------------------------------------------------------

    def _run_command(self, *words: str) -> str:
        # In a session of its own: Ctrl-C is ours to act on, between two commands, not in the middle of a migration.
        done = subprocess.run(
            children.manage(*words),
            env=self._env,
            capture_output=True,
            text=True,
            check=False,
            start_new_session=True,
        )
        if done.returncode:
            raise UpError(f"`manage.py {words[0]}` failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def _start_children(self, facts: Mapping[str, Any]) -> None:
        if self._stopping.is_set():
            return
        self._supervisor.add(children.web(self._options, self._env))
        self._supervisor.add(children.queue_cluster(self._env))
        for number in range(1, self._options.replicas + 1):
            self._supervisor.add(children.replica(number, self._env))
        if self._options.runners:
            self._wait_until_ready()
        for number in range(1, self._options.runners + 1):
            self._supervisor.add(children.runner(number, self._runner_environment(number, facts)))

    def _runner_environment(self, number: int, facts: Mapping[str, Any]) -> dict[str, str]:
        """A runner knows its server and its enrolment token, not the database."""
        hidden = {"DATABASE_URL", "DATABASE_DIRECT_URL", "REDIS_URL", "SECRET_KEY", "DJANGO_SETTINGS_MODULE"}
        if not isinstance(resolve(self._env), Unrestricted):
            # It makes containers on the same daemon: they are counted with all others (rule P4).
            hidden.discard("REDIS_URL")
        kept = {k: v for k, v in self._env.items() if k not in hidden}
        # A runner's stored token belongs to the database that knows it: another database, another place.
        fleet = hashlib.sha256(self._env["DATABASE_URL"].encode()).hexdigest()[:12]
        home = self._logs.parent / "runners" / fleet / f"runner-{number}"
        home.mkdir(parents=True, exist_ok=True)
        return {
            **kept,
            "WHARFINGER_URL": f"http://127.0.0.1:{self._options.port}",
            "WHARFINGER_ENROLMENT_TOKEN": str(facts["enrolment"]),
            "WHARFINGER_RUNNER_NAME": f"runner-{number}",
            "WHARFINGER_RUNNER_STATE": str(home),
            "WHARFINGER_EXECUTOR": self._execution.executor,
            "WHARFINGER_IMAGE_ALIASES": self._execution.image_aliases,
            "WHARFINGER_RUNNER_SLOTS": "2",
            "WHARFINGER_DRAIN_SECONDS": self._env["CONTROLPLANE_DRAIN_SECONDS"],
        }

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        url = f"http://127.0.0.1:{self._options.port}/livez"
        while not self._stopping.is_set():
            try:
                with urllib.request.urlopen(url, timeout=2) as answer:
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                if time.monotonic() > deadline:
                    log = self._supervisor.log_path("web")
                    raise UpError(
                        f"the web server does not answer at {url} after {READY_SECONDS:g} s; see {log}"
                    ) from None
            self._supervisor.tick()
            time.sleep(TICK_SECONDS)

    def _announce(self, facts: Mapping[str, Any], told: Path) -> None:
        base = f"http://127.0.0.1:{self._options.port}"
        self._show.event(
            "executor", text=f"{self._execution.executor}: {self._execution.why}; {self._execution.promises}"
        )
        self._show.event("logs", text=str(self._logs))
        self._show.event("admin", text=f"{base}/admin/")
        if facts["admin"]:
            who = facts["admin"]
            self._show.event("login", text=f"{who['username']} / {who['password']}  (shown this once)")
        else:
            self._show.event("login", text="as before; forgotten: manage.py changepassword admin")
        manage = shlex.join([sys.executable, children.MANAGE])
        self._show.event("by_hand", text=f"in another terminal: . {shlex.quote(str(told))}; {manage} doctor")
        if not self._options.once:
            for slug, tenant in facts["tenants"].items():
                self._show.event("tenant", text=f"{slug}: WHARFINGER_URL={base} WHARFINGER_TOKEN={tenant['token']}")

    def _start_demo(self, facts: Mapping[str, Any]) -> None:
        words = ["demo", "--url", f"http://127.0.0.1:{self._options.port}"]
        words += ["--problems", str(self._options.problems)]
        if self._execution.docker_socket:
            words += ["--docker-socket", self._execution.docker_socket]
        if not self._options.once:
            words.append("--long-run")
        env = {**self._env, "WHARFINGER_DEMO_TENANTS": json.dumps(facts["tenants"])}
        with (self._logs / "demo.log").open("ab") as log:
            self._demo = subprocess.Popen(
                guarded(children.manage(*words), signal.SIGTERM),
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        threading.Thread(target=self._read_demo, args=(self._demo,), daemon=True).start()

    def _read_demo(self, demo: subprocess.Popen[bytes]) -> None:
        assert demo.stdout is not None  # noqa: S101 - it was opened with a pipe
        for line in demo.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)

    # -- running ------------------------------------------------------------------------------------------------------

    def _look_after(self) -> None:
        while not self._stopping.wait(TICK_SECONDS):
            self._supervisor.tick()
            self._services.revive(self._on_service)
            if self._take_lines() and self._options.once:
                return

    def _take_lines(self) -> bool:
        """Show what the demo said; True when it has ended."""
        while True:
            try:
                line = self._lines.get_nowait()
            except queue.Empty:
                return False
            if line is None:
                self._demo_ended()
                return True
            name = line.pop("event")
            if name == "summary":
                self.summary = {**line, "restarts": {**self._services.restarts, **self._supervisor.restarts}}
                self._show.event("demo_ended", as_expected=line["as_expected"], wall_seconds=line["wall_seconds"])
            else:
                self._show.event(name, **line)

    def _demo_ended(self) -> None:
        assert self._demo is not None  # noqa: S101 - its lines came from it
        code = self._demo.wait()
        if self.summary is None:
            self._show.event("demo_failed", exit_code=code, text=f"the demo broke off; see {self._logs / 'demo.log'}")

    def _on_child(self, event: Event) -> None:
        if event.happened in (Happened.DIED, Happened.ENDED, Happened.KILLED):
            self._show.event("child", **{k: v for k, v in asdict(event).items() if v is not None})

    def _on_service(self, event: ServiceEvent) -> None:
        told = {"child": event.name, "restarts": event.restarts, "delay_seconds": event.delay_seconds}
        if event.error:
            self._show.event("child", happened=Happened.NOT_RESTARTED, **told, error=event.error)
        else:
            self._show.event("child", happened=Happened.DIED, **told)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """The first asks for a clean stop; a second passes the hurry on to every child."""
        if self._stopping.is_set():
            for pid in self._supervisor.pids.values():
                send(pid, signal.SIGTERM)
        self._stopping.set()

    # -- stopping -----------------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        if self._demo is not None and self._demo.poll() is None:
            send(self._demo.pid, signal.SIGTERM)
            try:
                self._demo.wait(DEMO_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._demo.kill()
        if self._supervisor.pids:
            self._show.event("stopping", text="draining; again Ctrl-C stops running work at once")
        self._supervisor.stop()
        self._show.close()


def refuse_taken_port(port: int) -> None:
    """Before anything starts: another `up`, or another program, may have it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise UpError(f"port {port} is taken ({error}); stop what uses it, or give another: --port") from error
