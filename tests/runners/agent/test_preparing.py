"""What stands before a start: the driver's logic, with the control plane in memory of `test_driver`."""

from __future__ import annotations

import threading

import pytest

from runners.agent.assignment import Ending, RunKey, Verdict
from runners.agent.executors.base import ImageUnavailable
from tests.runners.agent.conftest import eventually
from tests.runners.agent.test_driver import Bench, bench

__all__ = ["bench"]

pytestmark = pytest.mark.timeout(60)


@pytest.mark.rule("Q5")
def test_an_image_is_pulled_before_the_start_is_asked_for_and_reported_meanwhile(bench: Bench) -> None:
    pull = bench.executor.pulls[1] = threading.Event()
    bench.drive(runs=2)
    bench.running(2)
    eventually(lambda: ("pulling", 1) in bench.control.calls)
    assert bench.named("pulling")[0]["status"] == "Downloading"
    assert 1 not in bench.executor.made
    assert [fields["run"] for fields in bench.named("accepted")] == [2]
    pull.set()
    bench.running(1).end()
    assert bench.result(1).ending is Ending.SUCCEEDED


@pytest.mark.rule("Q5")
def test_a_pull_is_reported_again_and_again_and_an_outage_ends_it_no_more_than_it_ends_a_run(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runners.agent.preparing.REPORT_SECONDS", 0.05)
    bench.control.fail["pulling"] = 3
    bench.executor.pulls[1] = threading.Event()
    bench.drive(runs=1)
    eventually(lambda: bench.control.calls.count(("pulling", 1)) > 6)
    assert bench.driver is not None
    assert bench.driver.held == [RunKey(1, 1)]
    bench.executor.pulls[1].set()
    bench.running(1)


@pytest.mark.rule("Q5")
def test_what_cannot_be_had_fails_the_run_without_a_start(bench: Bench) -> None:
    bench.executor.unpullable = {1: ImageUnavailable("no such image"), 2: ValueError("bug")}
    bench.drive(runs=2)
    assert (bench.result(1).ending, bench.result(1).reason) == (Ending.FAILED, "image_unavailable")
    assert bench.result(2).reason == "executor_error"
    assert not [call for call in bench.control.calls if call[0] == "start"]


@pytest.mark.parametrize("verdict", [Verdict.CANCEL, Verdict.SUPERSEDED])
def test_a_run_that_is_pulling_can_be_stopped(bench: Bench, verdict: Verdict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runners.agent.preparing.REPORT_SECONDS", 0.05)
    pull = bench.executor.pulls[1] = threading.Event()
    driver = bench.drive(runs=1)
    eventually(lambda: bench.named("pulling"))
    bench.control.verdicts[RunKey(1, 1)] = verdict
    eventually(lambda: not driver.held)
    assert bench.executor.made == {}
    assert bool(bench.control.results) is (verdict is Verdict.CANCEL)
    pull.set()


def test_a_drain_gives_back_what_is_pulling(bench: Bench) -> None:
    pull = bench.executor.pulls[1] = threading.Event()
    driver = bench.drive(runs=1)
    eventually(lambda: bench.named("pulling"))
    assert driver.drain(10)
    assert bench.control.given_back == {RunKey(1, 1): "drained"}
    pull.set()
