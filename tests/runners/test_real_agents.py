"""Agents as real processes with Docker: one that was stopped past its lease, and all of them through an outage."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
from django.db.models.functions import Now

from admission.models import Run, Tenant
from admission.services.sweeps import pass_runner_leases, release_delayed
from controlplane.core.audit import SYSTEM
from runners.agent.executors.docker_adapter import DockerAdapter
from runners.models import Runner
from runners.services.enrolment import Machine, enrol, issue_enrolment_token
from runners.services.logs import read_log
from tests import ledger
from tests.fencing.conftest import local_image
from tests.fencing.world import ROOT, Fleet, Victim, control_plane, environment, until
from tests.runners.conftest import RunnerCaller, named

__all__ = ["local_image"]

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.xdist_group("fencing"), pytest.mark.timeout(240)]

SCALE = 0.4
"""Of the windows: a lease of 3.2 s, a heartbeat of 0.2 s."""


def enrolled(name: str, executor: str) -> tuple[int, str]:
    secret = issue_enrolment_token(actor=SYSTEM)[1]
    runner, token = enrol(secret, Machine(name, slots=2, executors=(executor,)))
    return runner.pk, token


def containers(run: int, attempt: int | None = None) -> set[str]:
    labels = {"wharfinger.run": str(run), **({"wharfinger.attempt": str(attempt)} if attempt else {})}
    adapter = DockerAdapter()
    try:
        return set(adapter.list_ids(labels))
    finally:
        adapter.close()


def end_well(run: int, attempt: int) -> None:
    adapter = DockerAdapter()
    (container,) = containers(run, attempt)
    adapter.kill(container, "SIGUSR1")
    adapter.close()


def talkative(image: str) -> dict[str, Any]:
    """Says which container it is, again and again, and ends, well, only when it is told to: nothing ends by itself."""
    told = "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))"
    say = "print(socket.gethostname(), flush=True); time.sleep(0.2)"
    code = f"import signal, socket, sys, time\n{told}\nwhile True: {say}"
    resources = {"memory_mib": 64, "cpu": 0.2}
    return {"command": ["python", "-c", code], "image": image, "resources": resources, "retry": {"backoff_seconds": 0}}


@pytest.mark.rule("Q6", "Q8", "Q9")
def test_an_agent_that_was_stopped_past_its_lease_touches_nothing_of_its_successors(
    tmp_path: Path,
    settings: Any,
    make_tenant: Callable[..., Tenant],
    live_server: Any,
    local_image: str,
) -> None:
    settings.CONTROLPLANE = control_plane("off", SCALE)
    tenant = make_tenant(2)
    run = ledger.submit(tenant, **talkative(local_image))[0]
    stale_id, stale_token = enrolled("stale", "docker")
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    with (
        Fleet(tmp_path / "first", "off", "docker") as first,
        Fleet(tmp_path / "second", "off", "docker") as second,
        ledger.Background(sweep, every=0.1),
    ):
        stale = first.agent(live_server.url, stale_token)
        until(lambda: ledger.state(run) == "running" and len(read_log(run).data) > 100, stale.text)
        caller = RunnerCaller(stale_id, stale_token)
        held = caller.get("/runner/holds").json()["assignments"][0]
        stale.process.send_signal(signal.SIGSTOP)
        until(lambda: ledger.run(run).attempt == 1 and ledger.state(run) == "queued", stale.text)
        told = read_log(run, attempt=1).data
        successor = second.agent(live_server.url, enrolled("successor", "docker")[1])
        until(
            lambda: len(read_log(run, attempt=2).data) > 100 if ledger.run(run).attempt == 2 else False, successor.text
        )
        assert containers(run, 1), "the stopped agent's container was to be there still"
        stale.process.send_signal(signal.SIGCONT)
        until(lambda: not containers(run, 1), stale.text)
        assert ledger.run(run).attempt == 2
        assert_every_call_is_refused(caller, held)
        end_well(run, 2)
        until(lambda: ledger.run(run).finished_at is not None, successor.text)
        assert_untouched(run, told)
    assert not containers(run)


def sweep() -> None:
    pass_runner_leases()
    release_delayed()


def assert_every_call_is_refused(caller: RunnerCaller, held: dict[str, Any]) -> None:
    """Each call about the lost hold, by the runner itself and with the right job token."""
    calls = {
        "start": caller.job(held, "start"),
        "heartbeat": caller.job(held, "heartbeat"),
        "result": caller.job(held, "result", ending="succeeded", exit_code=0),
        "cancelled": caller.job(held, "result", ending="cancelled"),
        "log": caller.log(held, 0, b"forged"),
        "log at its end": caller.log(held, read_log(held["run"], attempt=1).size, b"forged"),
    }
    assert {name: answer.status_code for name, answer in calls.items()} == dict.fromkeys(calls, 409)
    assert {answer.json()["code"] for answer in calls.values()} == {"superseded"}
    ending = {"ending": "succeeded", "exit_code": 0}
    batches: dict[str, Any] = {
        "/runner/starts": {"runs": [named(held)]},
        "/runner/heartbeats": {"runs": [named(held)], "pulling": [named(held)]},
        "/runner/results": {"results": [named(held, **ending)]},
    }
    for path, body in batches.items():
        assert {one["verdict"] for one in caller.post(path, body).json()["verdicts"]} == {"superseded"}


def assert_untouched(run: int, told: bytes) -> None:
    row, (lost, done) = ledger.run(run), ledger.attempts(run)
    assert (row.state, row.exit_code, row.attempt, row.driver_name) == ("succeeded", 0, 2, "successor")
    assert (lost.ending, done.ending) == ("interrupted", "succeeded")
    assert read_log(run, attempt=1).data == told
    names = set(read_log(run, attempt=2).data.split())
    assert len(names) == 1
    assert names.isdisjoint(told.split())
    ledger.assert_conserved()


class Server:
    """The web server in a process of its own, at one address, stopped and started at will."""

    def __init__(self, directory: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self._env = environment("off", ledger.database_url(), "process", directory / "scratch")
        self._env |= {"ALLOWED_HOSTS": "127.0.0.1", "PYTHONPATH": str(ROOT)}
        self._log = directory / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        argv = [
            *(sys.executable, "-m", "granian", "--interface", "wsgi", "--host", "127.0.0.1", "--port", str(self.port)),
            *("--workers", "1", "--blocking-threads", "4", "--no-ws", "controlplane.wsgi:application"),
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(argv, cwd=ROOT, env=self._env, stdout=log, stderr=log)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)

    def answers(self) -> bool:
        try:
            return requests.get(f"{self.url}/livez", timeout=5).ok
        except requests.RequestException:
            return False

    def text(self) -> str:
        return self._log.read_text(errors="replace")


@pytest.fixture
def server(tmp_path: Path, transactional_db: None) -> Iterator[Server]:
    made = Server(tmp_path)
    yield made
    made.stop()


@contextmanager
def paused(agent: Victim) -> Iterator[None]:
    agent.process.send_signal(signal.SIGSTOP)
    yield
    agent.process.send_signal(signal.SIGCONT)


def agent_at(url: str, token: str, directory: Path) -> Victim:
    code = (
        "import sys, logging; logging.basicConfig(level=20)\n"
        "from runners.agent.agent import Agent, AgentSettings\n"
        "from runners.cli.runner import make_executor\n"
        "make = lambda: make_executor('process', {})\n"
        "sys.exit(Agent(sys.argv[1], sys.argv[2], make, AgentSettings(slots=4)).run())\n"
    )
    env = {**os.environ, "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none", "PYTHONPATH": str(ROOT)}
    env["CONTROLPLANE_SCRATCH_DIR"] = str(directory / "scratch")
    log = directory / "agent.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", code, url, token], cwd=ROOT, env=env, stdout=file, stderr=file
        )
    return Victim(process, log)


@pytest.mark.rule("Q6", "Q12")
def test_after_an_outage_the_agents_get_one_full_lease_to_come_back(
    server: Server, tmp_path: Path, settings: Any, make_tenant: Callable[..., Tenant]
) -> None:
    """Web server and sweeps are down for longer than a lease; the agent works on, and keeps its run."""
    settings.CONTROLPLANE = control_plane("off")
    for place in (tmp_path, *list(tmp_path.parents)[:2]):
        place.chmod(0o711)
    code = "import time\nfor n in range(100):\n print(n, flush=True)\n time.sleep(0.15)"
    command = ["python", "-c", code]
    run = ledger.submit(make_tenant(2), command=command, backend="process", resources={"memory_mib": 64})[0]
    server.start()
    agent = agent_at(server.url, enrolled("survivor", "process")[1], tmp_path)
    try:
        until(lambda: ledger.state(run) == "running" and agent.alive(), lambda: agent.text() + server.text())
        assert pass_runner_leases().counts == {"runner_lease": 0}
        server.stop()
        until(lambda: Run.objects.filter(pk=run, lease_until__lt=Now()).exists(), agent.text)
        ledger.holds_for(5, agent.alive)
        server.start()
        with paused(agent):
            until(server.answers, server.text)
            # Everything is back but the agent, and the first pass would take its run: its lease has lapsed. It waits.
            assert pass_runner_leases().counts == {"runner_lease": 0, "held_after_outage": True}
        with ledger.Background(pass_runner_leases, every=0.1):
            until(lambda: Run.objects.filter(pk=run, lease_until__gt=Now()).exists(), agent.text)
            until(lambda: ledger.run(run).finished_at is not None, agent.text)
    finally:
        agent.end()
    row = ledger.run(run)
    assert (row.state, row.attempt, row.tries) == ("succeeded", 1, 1)
    assert read_log(run).data == b"".join(b"%d\n" % n for n in range(100))
    assert Runner.objects.get().name == "survivor"
