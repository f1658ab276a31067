"""The agent at the real web server, whose claims wait: nothing that is asked of it has to wait with them."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from admission.services.quotas import set_quota
from admission.services.runs import cancel_runs
from admission.services.sweeps import pass_start_deadlines
from controlplane.core.audit import SYSTEM
from runners.models import Runner
from runners.services.fleet import drain_runner
from tests import ledger
from tests.runners.conftest import START_DEADLINE_SECONDS, RunnerCaller, make_runner
from tests.runners.test_agent import SECONDS, Start, agents, events, is_running
from tests.runners.web import LossyProxy, OpenPoll, Web

SOON = 8.0
"""Far below the 48 to 60 s for which a claim is held; most of it is the agent's own end on a busy machine."""


@pytest.fixture
def tenant_row(transactional_db: None) -> Any:
    return ledger.make_tenant()


@pytest.fixture
def start(web: Web, transactional_db: None, tmp_path: Path) -> Iterator[Start]:
    with agents(web.url, tmp_path) as run:
        yield run


def until_waiting(tmp_path: Path) -> None:
    """Connected, and its first claim found nothing: the next one is held."""
    ledger.until(lambda: any(event["event"] == "connected" for event in events(tmp_path)))
    time.sleep(0.5)


@pytest.mark.rule("Q7", "Q12")
def test_sigterm_ends_an_agent_that_waits(start: Start, tmp_path: Path) -> None:
    process = start()
    until_waiting(tmp_path)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 0
    assert time.monotonic() - began < SOON


@pytest.mark.rule("Q7", "Q11")
def test_a_drain_reaches_one_that_waits(start: Start, tmp_path: Path) -> None:
    process = start()
    until_waiting(tmp_path)
    began = time.monotonic()
    drain_runner(Runner.objects.get().pk, actor=SYSTEM, reason="test")
    assert process.wait(SECONDS) == 0
    assert time.monotonic() - began < SOON


@pytest.mark.rule("Q9")
def test_a_cancel_reaches_a_full_one_and_a_waiting_one(start: Start, tenant_row: Any, tmp_path: Path) -> None:
    first, second = ledger.submit(tenant_row, 2, command=["sleep", "600"], stop_grace_seconds=1)
    start()
    ledger.until(lambda: is_running(first) and is_running(second))
    for run in (first, second):  # full at the first, waiting for more at the second
        began = time.monotonic()
        cancel_runs([run], actor=SYSTEM)
        ledger.until(lambda run=run: ledger.state(run) == "cancelled")
        assert time.monotonic() - began < SOON
        row = ledger.run(run)
        assert row.cancel_requested_at <= row.cancel_stopped_at <= row.cancel_confirmed_at


@pytest.mark.rule("Q4", "Q12")
def test_a_claim_whose_answer_was_lost_is_executed_once(web: Web, tenant_row: Any, tmp_path: Path) -> None:
    proxy = LossyProxy(web.port)
    with agents(proxy.url, tmp_path) as start:
        start()
        until_waiting(tmp_path)
        runs = ledger.submit(tenant_row, 2, command=["true"])
        ledger.until(lambda: all(ledger.state(run) == "succeeded" for run in runs))
    proxy.close()
    assert proxy.lost == 1
    assert {(row.attempt, row.tries, row.unstarted) for row in map(ledger.run, runs)} == {(1, 1, 0)}
    ledger.assert_conserved()


@pytest.mark.rule("Q4", "Q5", "Q12")
def test_a_claim_whose_answer_was_lost_with_its_agent_goes_back_after_the_start_deadline(
    web: Web, tenant_row: Any, tmp_path: Path
) -> None:
    proxy = LossyProxy(web.port)
    with agents(proxy.url, tmp_path) as start:
        process = start()
        until_waiting(tmp_path)
        # It never gets to repeat: its end comes with the loss.
        proxy.on_loss = process.kill
        runs = ledger.submit(tenant_row, 2, command=["true"])
        ledger.until(lambda: process.poll() is not None)
    proxy.close()
    assert {ledger.state(run) for run in runs} == {"admitted"}
    with ledger.Background(pass_start_deadlines, every=0.1):
        ledger.until(lambda: all(ledger.state(run) == "queued" for run in runs))
    assert {(row.attempt, row.tries, row.unstarted) for row in map(ledger.run, runs)} == {(1, 0, 1)}
    for run in runs:
        (attempt,) = ledger.attempts(run)
        assert attempt.released_at is not None
        assert (attempt.released_at - attempt.admitted_at).total_seconds() >= START_DEADLINE_SECONDS
    ledger.assert_conserved()


# -- a cancel at every step, as a runner sees it over the wire --------------------------------------------------------


def claimed(web: Web, runner: RunnerCaller) -> dict[str, Any]:
    status, body, _ = OpenPoll(web.port, runner.token).answer()
    assert status == 200
    return dict(body["assignments"][0])


Step = Callable[[Web, RunnerCaller, int], None]


def while_it_waits(web: Web, runner: RunnerCaller, run: int) -> None:
    """The poll is open before the cancel and after it, and what was cancelled is never its answer."""
    tenant = ledger.run(run).tenant
    set_quota(tenant, 0, actor=SYSTEM)
    waiting = OpenPoll(web.port, runner.token, wait=3)
    assert waiting.is_open(0.7)
    cancel_runs([run], actor=SYSTEM)
    set_quota(tenant, 5, actor=SYSTEM)
    assert waiting.is_open(0.7)
    assert waiting.answer()[0] == 204
    assert ledger.run(run).attempt == 0


def after_the_claim(web: Web, runner: RunnerCaller, run: int) -> None:
    given = claimed(web, runner)
    cancel_runs([run], actor=SYSTEM)
    assert runner.job(given, "start").json()["verdict"] == "cancel"
    assert runner.job(given, "result", ending="cancelled").status_code == 200


def while_it_runs(web: Web, runner: RunnerCaller, run: int) -> None:
    given = claimed(web, runner)
    assert runner.job(given, "start").json()["verdict"] == "ok"
    waiting = OpenPoll(web.port, runner.token, "next")
    assert waiting.is_open(0.3)
    cancel_runs([run], actor=SYSTEM)
    assert waiting.answer()[1]["cancel"] == [{"run": run, "epoch": given["epoch"]}]
    assert ledger.state(run) == "running"
    assert runner.job(given, "heartbeat").json()["verdict"] == "cancel"
    assert ledger.run(run).cancel_seen_at is not None
    assert runner.job(given, "result", ending="cancelled").status_code == 200


def while_it_sends_output(web: Web, runner: RunnerCaller, run: int) -> None:
    given = claimed(web, runner)
    runner.job(given, "start")
    assert runner.log(given, 0, b"first").json()["verdict"] == "ok"
    cancel_runs([run], actor=SYSTEM)
    assert runner.log(given, 5, b"second").json()["verdict"] == "cancel"
    assert runner.job(given, "result", ending="cancelled").status_code == 200
    assert runner.job(given, "result", ending="cancelled").status_code == 200


def after_its_result(web: Web, runner: RunnerCaller, run: int) -> None:
    given = claimed(web, runner)
    runner.job(given, "start")
    cancel_runs([run], actor=SYSTEM)
    assert runner.job(given, "result", ending="succeeded", exit_code=0).status_code == 200
    assert ledger.state(run) == "succeeded"


@pytest.mark.parametrize("step", [while_it_waits, after_the_claim, while_it_runs, while_it_sends_output])
@pytest.mark.rule("Q9")
def test_a_cancel_at_any_step_ends_as_cancelled(web: Web, tenant_row: Any, step: Step) -> None:
    runner = make_runner()
    run = ledger.submit(tenant_row)[0]
    step(web, runner, run)
    row = ledger.run(run)
    assert (row.state, row.reason) == ("cancelled", "cancelled" if step is while_it_waits else row.reason)
    assert row.cancel_requested_at is not None
    ledger.assert_conserved()


@pytest.mark.rule("Q9")
def test_a_result_that_was_faster_than_the_cancel_stands(web: Web, tenant_row: Any) -> None:
    run = ledger.submit(tenant_row)[0]
    after_its_result(web, make_runner(), run)
    ledger.assert_conserved()
