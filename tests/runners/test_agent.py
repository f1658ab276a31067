"""The agent as a process, with the process executor, against a server on a socket."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from admission.services.runs import cancel_runs
from controlplane.core.audit import SYSTEM
from runners.models import EnrolmentToken, Runner
from runners.services.enrolment import issue_enrolment_token
from runners.services.fleet import drain_runner, revoke_runner
from runners.services.logs import read_log
from tests import ledger

SECONDS = 30

Start = Callable[..., subprocess.Popen[bytes]]


@contextmanager
def agents(url: str, tmp_path: Path, slots: int = 2) -> Iterator[Start]:
    """Agents of one machine against a server; they are stopped in the end."""
    _, secret = issue_enrolment_token(actor=SYSTEM)
    hidden = ("DATABASE_URL", "SECRET_KEY", "DJANGO_SETTINGS_MODULE", "WHARFINGER_TOKEN")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    env |= {
        "WHARFINGER_URL": url,
        "WHARFINGER_ENROLMENT_TOKEN": secret,
        "WHARFINGER_RUNNER_STATE": str(tmp_path / "state"),
        "WHARFINGER_EXECUTOR": "process",
        "WHARFINGER_RUNNER_NAME": "agent",
        "WHARFINGER_RUNNER_SLOTS": str(slots),
    }
    started: list[subprocess.Popen[bytes]] = []

    def run() -> subprocess.Popen[bytes]:
        with (tmp_path / "events").open("ab") as events:
            process = subprocess.Popen(
                [sys.executable, "-m", "runners.cli", "runner", "run"],
                env=env,
                stdout=events,
                stderr=events,
                cwd=Path(__file__).parents[2],
            )
        started.append(process)
        return process

    try:
        yield run
    finally:
        for process in started:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.send_signal(signal.SIGTERM)
                process.wait(SECONDS)


@pytest.fixture
def tenant_row(transactional_db: None) -> Any:
    return ledger.make_tenant()


@pytest.fixture
def start(live_server: Any, transactional_db: None, tmp_path: Path) -> Iterator[Start]:
    """`start()`: an agent of this machine; the same one again after its end."""
    with agents(live_server.url, tmp_path) as run:
        yield run


def events(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "events").read_text().splitlines() if line.startswith("{")]


def is_running(run: int) -> bool:
    return ledger.state(run) == "running"


@pytest.mark.rule("Q12")
def test_it_enrols_executes_and_reports(start: Start, tenant_row: Any, tmp_path: Path) -> None:
    runs = [
        ledger.submit(tenant_row, command=["sh", "-c", f"echo out of {number}; exit {number}"])[0]
        for number in range(3)
    ]
    start()
    ledger.until(lambda: all(ledger.run(run).finished_at for run in runs))
    assert [(ledger.run(run).state, ledger.run(run).exit_code) for run in runs] == [
        ("succeeded", 0),
        ("failed", 1),
        ("failed", 2),
    ]
    assert read_log(runs[1]).data == b"out of 1\n"
    assert Runner.objects.get().name == "agent"
    state = tmp_path / "state" / "config.toml"
    assert oct(state.stat().st_mode & 0o777) == "0o600"


@pytest.mark.rule("Q9")
def test_a_cancel_reaches_it(start: Start, tenant_row: Any) -> None:
    run = ledger.submit(tenant_row, command=["sleep", "60"])[0]
    start()
    ledger.until(lambda: is_running(run))
    cancel_runs([run], actor=SYSTEM, reason="enough")
    ledger.until(lambda: ledger.state(run) == "cancelled")


@pytest.mark.rule("Q12")
def test_sigterm_finishes_what_runs_and_takes_nothing_new(start: Start, tenant_row: Any) -> None:
    run = ledger.submit(tenant_row, command=["sh", "-c", "sleep 2; echo done"])[0]
    process = start()
    ledger.until(lambda: is_running(run))
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    later = ledger.submit(tenant_row)[0]
    assert process.wait(SECONDS) == 0
    assert ledger.state(run) == "succeeded"
    assert ledger.state(later) == "queued"


@pytest.mark.rule("Q12")
@pytest.mark.rule("R14")
def test_a_second_sigterm_stops_what_runs_and_gives_it_back(start: Start, tenant_row: Any) -> None:
    run = ledger.submit(tenant_row, command=["sleep", "60"], stop_grace_seconds=0)[0]
    process = start()
    ledger.until(lambda: is_running(run))
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 0
    row = ledger.run(run)
    assert (row.state, row.tries) == ("queued", 0)
    ledger.assert_conserved()


@pytest.mark.rule("Q11")
def test_a_drain_asked_for_by_the_server_ends_it(start: Start, tenant_row: Any) -> None:
    run = ledger.submit(tenant_row, command=["sleep", "1"])[0]
    process = start()
    ledger.until(lambda: is_running(run))
    drain_runner(Runner.objects.get().pk, actor=SYSTEM, reason="maintenance")
    assert process.wait(SECONDS) == 0
    assert ledger.state(run) == "succeeded"


@pytest.mark.rule("Q2")
def test_a_revoked_one_stops_everything_and_says_so(start: Start, tenant_row: Any, tmp_path: Path) -> None:
    run = ledger.submit(tenant_row, command=["sleep", "60"], stop_grace_seconds=0)[0]
    process = start()
    ledger.until(lambda: is_running(run))
    revoke_runner(Runner.objects.get().pk, actor=SYSTEM, reason="stolen")
    assert process.wait(SECONDS) == 77
    assert ledger.state(run) == "queued"
    assert any(event["event"] == "abandoned" and event["left"] == 0 for event in events(tmp_path))


@pytest.mark.rule("A10")
def test_a_killed_one_returns_what_it_held_when_it_starts_again(start: Start, tenant_row: Any, tmp_path: Path) -> None:
    run = ledger.submit(tenant_row, command=["sleep", "60"], retry={"max_attempts": 5, "backoff_seconds": 0})[0]
    first = start()
    ledger.until(lambda: is_running(run))
    first.kill()
    first.wait(SECONDS)
    epoch = ledger.run(run).epoch
    start()
    ledger.until(lambda: ledger.run(run).epoch > epoch and is_running(run))
    assert [a.ending for a in ledger.attempts(run)] == ["interrupted", ""]
    assert any(event["event"] == "returned" for event in events(tmp_path))
    assert Runner.objects.count() == 1
    cancel_runs([run], actor=SYSTEM)
    ledger.until(lambda: ledger.state(run) == "cancelled")


def test_a_machine_that_is_not_enrolled_says_so(start: Start, tmp_path: Path) -> None:
    first = start()
    state = tmp_path / "state" / "config.toml"
    # The file is there before the enrolment is, so that none is spent where it could not be kept.
    ledger.until(lambda: "connected" in (tmp_path / "events").read_text())
    first.send_signal(signal.SIGTERM)
    first.wait(SECONDS)
    state.unlink()
    assert start().wait(SECONDS) == 77  # the enrolment token was for one machine
    assert "used up or expired" in (tmp_path / "events").read_text()


@pytest.mark.rule("Q2")
def test_a_running_one_takes_up_the_token_that_replaced_its_own(
    start: Start, tenant_row: Any, tmp_path: Path, live_server: Any
) -> None:
    first = ledger.submit(tenant_row, command=["sh", "-c", "sleep 3; echo done"])[0]
    process = start()
    ledger.until(lambda: is_running(first))
    env = {**os.environ, "WHARFINGER_RUNNER_STATE": str(tmp_path / "state"), "WHARFINGER_URL": live_server.url}
    for verb in ("rotate", "status"):  # the second is the first use of the new token: the old one is dead
        subprocess.run([sys.executable, "-m", "runners.cli", "runner", verb], env=env, check=True)
    assert Runner.objects.get().old_hash is None
    ledger.until(lambda: ledger.run(first).finished_at)
    assert (ledger.run(first).state, ledger.run(first).attempt) == ("succeeded", 1)
    second = ledger.submit(tenant_row, command=["true"])[0]
    ledger.until(lambda: ledger.state(second) == "succeeded")
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 0


@pytest.mark.rule("Q11")
def test_one_of_one_run_executes_one_and_ends(start: Start, tenant_row: Any) -> None:
    EnrolmentToken.objects.update(one_job=True)
    runs = ledger.submit(tenant_row, 3, command=["sh", "-c", "sleep 1"])
    assert start().wait(SECONDS) == 0
    assert sorted(ledger.state(run) for run in runs) == ["queued", "queued", "succeeded"]
    assert ledger.run(next(r for r in runs if ledger.state(r) == "succeeded")).attempt == 1
