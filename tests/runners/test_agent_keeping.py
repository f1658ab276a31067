"""The agent as a process against a server that is a process: what it keeps, delivers late, and never tells."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from typer.testing import CliRunner

from admission.services.runs import requeue_runs
from admission.services.tenants import issue_token
from controlplane.core.audit import SYSTEM
from controlplane.core.models import Hold
from runners.cli import app
from runners.models import Runner
from runners.services.enrolment import issue_enrolment_token
from runners.services.fleet import pause_runner
from runners.services.kept import read_kept
from runners.services.logs import read_log
from runners.services.secrets import set_secret
from tests import ledger

ROOT = Path(__file__).parents[2]
SECONDS = 60
VALUE = "hunter2-and-more"

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(170)]


class Server:
    """The web server as it is deployed, on a port that stays the same through its restarts."""

    def __init__(self, place: Path, **settings: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = place / "server"
        self._env = {
            **os.environ,
            "DATABASE_URL": ledger.application_url(),
            "CONTROLPLANE_ARTIFACT_DIR": str(place / "kept"),
            **settings,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self._process is not None:
            return
        listen = ("--interface", "wsgi", "--host", "127.0.0.1", "--port", str(self.port))
        argv = [sys.executable, "-m", "granian", *listen, "--workers", "1", "--blocking-threads", "4", "--no-ws"]
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [*argv, "controlplane.wsgi:application"], env=self._env, cwd=ROOT, stdout=out, stderr=out
            )
        ledger.until(self._answers, "the server did not start")

    def _answers(self) -> bool:
        try:
            return requests.get(f"{self.url}/livez", timeout=2).ok
        except requests.RequestException:
            return False

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(SECONDS)
            self._process = None


@pytest.fixture(scope="module")
def one_server(
    django_db_setup: None, django_db_blocker: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """The same for all tests here: its start takes longer than most of them."""
    made = Server(tmp_path_factory.mktemp("server"))
    yield made
    made.stop()
    # Other tests of this worker know of no web process that is away.
    with django_db_blocker.unblock():
        Hold.objects.filter(name="web").delete()


@pytest.fixture
def server(one_server: Server, transactional_db: None) -> Server:
    one_server.start()
    return one_server


class Machine:
    """One runner's machine: agents of it, one after the other, with one state."""

    def __init__(self, server: Any, place: Path) -> None:
        _, secret = issue_enrolment_token(actor=SYSTEM)
        hidden = ("DATABASE_URL", "SECRET_KEY", "DJANGO_SETTINGS_MODULE", "WHARFINGER_TOKEN")
        self.env = {name: value for name, value in os.environ.items() if name not in hidden} | {
            "WHARFINGER_URL": server.url,
            "WHARFINGER_ENROLMENT_TOKEN": secret,
            "WHARFINGER_RUNNER_STATE": str(place / "state"),
            "WHARFINGER_EXECUTOR": "process",
            "WHARFINGER_RUNNER_SLOTS": "3",
        }
        self.log = place / "events"
        self.spool = place / "state" / "spool"
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as events:
            argv = [sys.executable, "-m", "runners.cli", "runner", "run", *words]
            self.started.append(subprocess.Popen(argv, env=self.env, stdout=events, stderr=events, cwd=ROOT))
        return self.started[-1]

    def command(self, *words: str) -> Any:
        """In this process: a dozen interpreters would take longer than all that they do."""
        return CliRunner(env=self.env).invoke(app, ["runner", *words])

    def named(self, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == event]

    def spooled(self) -> list[Path]:
        return list(self.spool.rglob("*.hold"))

    def stop(self) -> None:
        for process in self.started:
            if process.poll() is None:
                for _ in range(2):
                    process.send_signal(signal.SIGTERM)
                    time.sleep(0.1)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(5)
            if process.poll() is None:
                process.kill()
                process.wait(SECONDS)


@pytest.fixture
def machine(server: Server, tmp_path: Path) -> Iterator[Machine]:
    made = Machine(server, tmp_path)
    yield made
    made.stop()


def submit(tenant: Any, script: str, **spec: Any) -> int:
    return ledger.submit(tenant, command=["sh", "-c", script], **spec)[0]


def running(*runs: int) -> bool:
    return all(ledger.state(run) == "running" for run in runs)


def ended(*runs: int) -> bool:
    return all(ledger.run(run).finished_at for run in runs)


@pytest.mark.rule("Q8")
@pytest.mark.rule("Q13")
def test_a_run_keeps_its_files_and_tells_no_secret(server: Server, machine: Machine, tmp_path: Path) -> None:
    tenant = ledger.make_tenant()
    set_secret(tenant, "TOKEN", VALUE, actor=SYSTEM)
    script = (
        'mkdir out; echo "it is $TOKEN" | tee out/log; head -c 3000000 /dev/zero > out/zeros; '
        "ln -s /etc/passwd out/p; exit 3"
    )
    run = submit(tenant, script, secrets=["TOKEN"], artifacts=["out"])
    machine.start()
    ledger.until(lambda: ended(run))
    row = ledger.run(run)
    assert (row.state, row.exit_code) == ("failed", 3)
    said = read_log(run).data.decode()
    assert "it is [masked]" in said
    assert "[wharfinger: 'out/p' is not kept: it is a link]" in said
    kept = {one.name: bytes(one.sha256) for one in read_kept(run).files}
    assert kept == {
        "out/log": hashlib.sha256(f"it is {VALUE}\n".encode()).digest(),  # a file is the tenant's own affair
        "out/zeros": hashlib.sha256(bytes(3_000_000)).digest(),
    }
    fetched = fetch(server, tenant, run, tmp_path / "fetched")
    assert (fetched / "out" / "zeros").stat().st_size == 3_000_000
    everything = machine.log.read_text() + server.log.read_text()
    assert VALUE not in everything
    assert machine.spooled() == []


def fetch(server: Server, tenant: Any, run: int, place: Path) -> Path:
    env = {
        **os.environ, "WHARFINGER_URL": server.url, "WHARFINGER_TOKEN": issue_token(tenant, "cli", actor=SYSTEM)[1],
    }  # fmt: skip
    argv = [sys.executable, "-m", "runners.cli", "artifacts", str(run), "--download", str(place)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, cwd=ROOT, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    assert "kept until" in done.stderr
    return place


def outlast(server: Server, machine: Machine, seconds: float, *, kill: bool) -> None:
    """The server goes while three runs execute; they end without it; it comes back after `seconds`."""
    tenant = ledger.make_tenant()
    script = "for n in $(seq 2000); do echo line $n of a log that is long enough; done; echo last; echo x > kept"
    runs = [submit(tenant, f"sleep 1; {script}; exit {code}", artifacts=["kept"]) for code in (0, 1, 2)]
    agent = machine.start()
    ledger.until(lambda: running(*runs))
    server.stop()
    away = time.monotonic()
    ledger.until(lambda: len(machine.spooled()) == 3, "the ends were not kept on the disk")
    assert all(path.stat().st_mode & 0o077 == 0 for path in machine.spooled())
    if kill:
        agent.kill()
        agent.wait(SECONDS)
        agent = machine.start()
    while time.monotonic() - away < seconds:
        assert running(*runs)  # nobody took them: nobody could
        time.sleep(1)
    server.start()
    ledger.until(Hold.objects.filter(name="web").exists, "the web process does not show that it lives")
    ledger.until(lambda: ended(*runs), "the results were not delivered")
    assert [ledger.run(run).exit_code for run in runs] == [0, 1, 2]
    for run in runs:
        assert len(ledger.attempts(run)) == 1
        lines = read_log(run).data.decode().splitlines()
        assert (len(lines), lines[0], lines[-1]) == (2001, "line 1 of a log that is long enough", "last")
        assert [one.name for one in read_kept(run).files] == ["kept"]
    ledger.until(lambda: machine.spooled() == [])
    ledger.assert_conserved()


@pytest.mark.rule("Q12")
def test_a_server_away_for_a_while_loses_no_result_and_no_output(server: Server, machine: Machine) -> None:
    outlast(server, machine, 3, kill=False)


@pytest.mark.rule("Q12")
def test_an_agent_killed_meanwhile_delivers_after_its_restart(server: Server, machine: Machine) -> None:
    outlast(server, machine, 3, kill=True)


@pytest.mark.rule("Q12")
@pytest.mark.rule("Q6")
def test_a_result_that_nobody_takes_any_more_is_dropped(server: Server, machine: Machine) -> None:
    tenant = ledger.make_tenant()
    run = submit(tenant, "sleep 1; echo done", retry={"max_attempts": 5, "backoff_seconds": 3600})
    agent = machine.start()
    ledger.until(lambda: running(run))
    server.stop()
    ledger.until(machine.spooled)
    agent.kill()
    agent.wait(SECONDS)
    taken = ledger.run(run)
    requeue_runs([(run, taken.epoch)], actor=SYSTEM, reason="somebody else shall do it")
    server.start()
    machine.start()
    ledger.until(lambda: machine.named("delivered"))
    assert machine.spooled() == []
    assert ledger.run(run).state == "queued"
    assert [event["verdict"] for event in machine.named("settled_late")] == ["superseded"]


@pytest.mark.rule("Q12")
def test_one_job_and_idle_exit(server: Server, machine: Machine) -> None:
    tenant = ledger.make_tenant()
    runs = [submit(tenant, "true") for _ in range(3)]
    assert machine.start("--once").wait(SECONDS) == 0
    assert sorted(ledger.state(run) for run in runs) == ["queued", "queued", "succeeded"]
    began = time.monotonic()
    assert machine.start("--idle-exit", "2").wait(SECONDS) == 0
    assert ended(*runs)
    assert time.monotonic() - began > 2
    assert Runner.objects.count() == 1


@pytest.mark.rule("Q12")
def test_a_docker_daemon_that_is_not_up_yet_is_waited_for(server: Server, machine: Machine, tmp_path: Path) -> None:
    daemon = tmp_path / "docker.sock"
    machine.env |= {"WHARFINGER_EXECUTOR": "docker", "DOCKER_HOST": f"unix://{daemon}"}
    agent = machine.start("--idle-exit", "0.5")
    ledger.until(lambda: len(machine.named("executor_unavailable")) >= 2)
    assert agent.poll() is None
    daemon.symlink_to("/var/run/docker.sock")
    assert agent.wait(SECONDS) == 0
    assert machine.named("connected")


@pytest.mark.rule("Q12")
def test_a_stop_ends_the_wait_for_a_docker_daemon(server: Server, machine: Machine, tmp_path: Path) -> None:
    machine.env |= {"WHARFINGER_EXECUTOR": "docker", "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    agent = machine.start()
    ledger.until(lambda: machine.named("executor_unavailable"))
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(SECONDS) == 0


@pytest.mark.rule("Q12")
@pytest.mark.rule("Q11")
def test_the_commands_of_a_machine(server: Server, machine: Machine) -> None:
    nothing = machine.command("verify")
    assert nothing.exit_code == 78
    assert "not enrolled" in nothing.stderr
    assert machine.command("enrol", "--executor", "process").exit_code == 0
    verified = machine.command("verify")
    assert verified.exit_code == 0, verified.stderr
    assert "executor: process works" in verified.stderr
    state = Path(machine.env["WHARFINGER_RUNNER_STATE"]) / "config.toml"
    state.chmod(0o644)
    checked = machine.command("config", "check")
    assert (checked.exit_code, "chmod 600" in checked.stderr) == (78, True)
    state.chmod(0o600)
    assert machine.command("pause", "--reason", "a disk is changed").exit_code == 0
    assert "already" in machine.command("pause").stderr
    assert "paused" in machine.command("status").stderr
    assert machine.command("resume").exit_code == 0
    assert machine.command("drain").exit_code == 0
    assert machine.start().wait(SECONDS) == 0  # draining: it ends at once
    machine.command("resume")
    pause_runner(Runner.objects.get().pk, actor=SYSTEM, reason="an operator's")
    refused = machine.command("resume")
    assert (refused.exit_code, "an operator's" in refused.stderr) == (1, True)
    server.stop()
    away = machine.command("verify")
    assert away.exit_code == 69
    assert "Is the server running" in away.stderr
    machine.env["WHARFINGER_SPOOL"] = "/proc/nowhere"
    assert machine.command("config", "check").exit_code == 78


@pytest.mark.soak
@pytest.mark.rule("Q12")
def test_a_stop_during_an_outage_ends_in_time_and_says_that_something_is_left(
    server: Server, machine: Machine
) -> None:
    tenant = ledger.make_tenant()
    run = submit(tenant, "sleep 1; echo done")
    agent = machine.start()
    ledger.until(lambda: running(run))
    server.stop()
    ledger.until(machine.spooled)
    agent.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert agent.poll() is None  # it waits to deliver
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(90) == 75
    server.start()
    machine.start("--idle-exit", "1").wait(SECONDS)
    assert ledger.state(run) == "succeeded"
    assert read_log(run).data == b"done\n"
