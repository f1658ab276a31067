"""The watchdog and the fence by themselves, each guard also removed to show that it is seen to be missing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from runners.agent.assignment import RunKey
from runners.agent.clock import now
from runners.agent.driver import Driver
from runners.agent.executors import process_sweep
from runners.agent.executors.base import ExecutorError
from runners.agent.executors.docker import DockerExecutor
from runners.agent.executors.docker_sweep import remove_all
from runners.agent.executors.process import ProcessExecutor
from runners.agent.fence import Fence, FencePassed
from runners.agent.watchdog import Task
from runners.agent.watchdog_process import WatchdogProcess, make_fence
from tests.fencing.world import ROOT, Observer, until
from tests.runners.agent.conftest import assignment, scratch
from tests.runners.agent.stub import StubControl
from tests.runners.agent.test_driver import StubExecutor

pytestmark = [pytest.mark.rule("A16"), pytest.mark.timeout(120), pytest.mark.xdist_group("fencing")]

KEY = RunKey(1, 1)
__all__ = ["scratch"]


class StubKeeper:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[float | None] = []
        self.confirms = True
        self.asked = 0

    def tell(self, deadline: float | None) -> None:
        self.told.append(deadline)

    def confirm(self, until: float) -> bool:
        self.asked += 1
        return self.confirms

    def close(self) -> None:
        self.told.append(None)


class ClockAfterReply(Fence):
    """Variant: the clock is read when the renewal's reply is there."""

    def renewed(self, keys: Iterable[RunKey], asked: float) -> None:
        super().renewed(keys, now())


@pytest.fixture
def mark(scratch: Path) -> str:
    return f"fencing-{uuid4().hex}"


@pytest.fixture
def watchdog(mark: str) -> Iterator[WatchdogProcess]:
    made = WatchdogProcess(Task("process", {"wharfinger.driver": mark}), lambda name, **fields: None)
    made.start()
    yield made
    made.close()


# -- who keeps the fence ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keeper", ["watchdog", "itself"])
def test_a_paused_driver_is_stopped_by_its_watchdog_and_would_not_be_by_itself(keeper: str, mark: str) -> None:
    command = [sys.executable, "-m", "tests.fencing.driving", keeper, "2", mark]
    driver = subprocess.Popen(command, cwd=ROOT)
    # Our own process and the driver's have the mark on their command lines too: only what the driver executes counts.
    try:
        with Observer("process", mark, {}) as observer:
            until(lambda: observer.count == 2)
            driver.send_signal(signal.SIGSTOP)
            time.sleep(3.5)
            assert observer.count - 1 == (0 if keeper == "watchdog" else 1)
    finally:
        driver.kill()
        driver.wait()
    with Observer("process", mark, {}) as observer:
        until(lambda: observer.count == 0)


def test_a_watchdog_that_is_killed_is_replaced_and_nothing_is_started_meanwhile(watchdog: WatchdogProcess) -> None:
    fence = Fence(watchdog, 1000)
    fence.begin(KEY, now())
    fence.ask(KEY)
    first = watchdog.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    until(lambda: watchdog.pid != first)
    fence.ask(KEY)
    assert watchdog.pid != first, "the answer is the new one's"


def test_a_watchdog_that_does_not_answer_allows_no_start(watchdog: WatchdogProcess) -> None:
    fence = Fence(watchdog, 1.5)
    fence.begin(KEY, now() + 1000)
    fence.ask(KEY)
    pid = watchdog.pid
    assert pid is not None
    fence.forget(KEY)
    os.kill(pid, signal.SIGSTOP)
    try:
        fence.begin(KEY, now())
        with pytest.raises(FencePassed, match="does not confirm"):
            fence.ask(KEY)
        assert not fence.allows_claims()
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_watchdog_ignores_what_stops_a_driver_and_lives_in_a_session_of_its_own(watchdog: WatchdogProcess) -> None:
    assert watchdog.confirm(now() + 30)
    pid = watchdog.pid
    assert pid is not None
    assert os.getsid(pid) == pid != os.getsid(0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(pid, number)
    assert watchdog.confirm(now() + 5)
    assert watchdog.pid == pid


def test_the_first_process_of_a_container_cannot_be_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with pytest.raises(ExecutorError, match="first process of its container"):
        make_fence(StubExecutor(), {"a": "b"}, lambda name, **fields: None, 10)


# -- what the deadline counts from ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fence_class", "holds"), [(Fence, True), (ClockAfterReply, False)])
def test_the_deadline_counts_from_before_a_renewal_was_sent(fence_class: type[Fence], *, holds: bool) -> None:
    """A renewal's reply comes after 0.4 s: the control plane counts from somewhere in between."""
    sent: list[float] = []
    late: list[float] = []

    class Slow(StubControl):
        def start(self, keys: Any) -> Any:
            sent.append(now())
            return super().start(keys)

        def heartbeat(self, keys: Any) -> Any:
            sent.append(now())
            return super().heartbeat(keys)

    class Comparing(StubKeeper):
        def tell(self, deadline: float | None) -> None:
            super().tell(deadline)
            if deadline is not None:
                late.append(deadline - 100 - sent[-1])

    control, executor = Slow([assignment(["true"])]), StubExecutor()
    control.delay["heartbeat"] = 0.4
    driver = Driver(control, executor, slots=1, heartbeat_seconds=0.1, fence=fence_class(Comparing(), 100))
    driver.start()
    until(lambda: len(late) > 3)
    assert (max(late) <= 0) is holds, late
    executor.made[1].end()
    assert driver.drain(10)


def test_a_start_whose_reply_was_lost_counts_from_the_first_question(mark: str) -> None:
    keeper = StubKeeper()
    control, executor = StubControl([assignment(["true"])]), StubExecutor()
    control.lose["start"] = 3
    driver = Driver(control, executor, slots=1, heartbeat_seconds=60, fence=Fence(keeper, 100))
    before = now()
    driver.start()
    until(lambda: 1 in executor.made)
    starts = [call for call in control.calls if call[0] == "start"]
    assert len(starts) == 4
    assert now() - before > 0.3, "the questions were apart"
    assert keeper.told[0] is not None
    assert keeper.told[0] < before + 100 + 0.3
    executor.made[1].end()
    assert driver.drain(10)


def test_the_earliest_run_and_the_own_beat_decide() -> None:
    keeper, other = StubKeeper(), RunKey(2, 1)
    fence = Fence(keeper, 50, beat_seconds=10, vouched_at=100)
    fence.begin(KEY, 120)
    fence.vouched(115)
    fence.vouched(112)
    fence.vouched(200)
    fence.begin(other, 130)
    fence.renewed([KEY, RunKey(9, 9)], 140)
    fence.forget(other)
    fence.forget(KEY)
    assert keeper.told == [110, 125, 170, 180, 190, None]


# -- what is asked before a start -------------------------------------------------------------------------------------


def test_nothing_is_started_past_the_fence_and_no_attempt_is_burned_for_it() -> None:
    keeper = StubKeeper()
    control, executor = StubControl([assignment(["true"])]), StubExecutor()

    fence = Fence(keeper, 0.3)
    begin = fence.begin

    def paused(key: RunKey, asked: float) -> None:
        """The driver is paused between the start's reply and its own next step."""
        begin(key, asked)
        time.sleep(0.4)

    fence.begin = paused  # type: ignore[method-assign]
    driver = Driver(control, executor, slots=1, heartbeat_seconds=60, fence=fence)
    driver.start()
    until(lambda: control.given_back)
    assert control.given_back == {KEY: "fenced"}
    assert executor.made == {}
    assert driver.drain(10)


def test_nothing_is_claimed_while_the_watchdog_keeps_silent_or_the_own_beat_stays_away() -> None:
    keeper = StubKeeper()
    keeper.confirms = False
    control, executor = StubControl([assignment(["true"])]), StubExecutor()
    driver = Driver(control, executor, slots=1, fence=Fence(keeper, 100))
    driver.start()
    until(lambda: keeper.asked > 1)
    assert control.calls == []
    keeper.confirms = True
    until(lambda: 1 in executor.made)
    executor.made[1].end()
    assert driver.drain(10)
    assert not Fence(StubKeeper(), 100, beat_seconds=10, vouched_at=now() - 11).allows_claims()


def test_an_end_that_the_watchdog_brought_about_is_lost_and_a_success_stays_one() -> None:
    ends = {}
    for run, code in ((1, 137), (2, 0)):
        control, executor = StubControl([assignment(["true"], run=run)]), StubExecutor()
        driver = Driver(control, executor, slots=1, heartbeat_seconds=60, fence=Fence(StubKeeper(), 1))
        driver.start()
        until(lambda made=executor.made, run=run: run in made)
        time.sleep(1.1)
        executor.made[run].end(code)
        until(lambda c=control: c.given_back or c.results)
        ends[code] = (list(control.given_back.values()), [r.ending for r in control.results.values()])
        assert driver.drain(10)
    assert ends == {137: (["lost"], []), 0: ([], ["succeeded"])}


# -- what is removed --------------------------------------------------------------------------------------------------


def forbid() -> None:
    raise FencePassed("a test forbids it")


def test_a_container_that_was_created_and_not_started_is_removed_too(mark: str, local_image: str) -> None:
    executor, labels = DockerExecutor(), {"wharfinger.driver": mark}
    execution = executor.start(assignment(["sleep", "60"], image=local_image), lambda data: None, labels, forbid)
    assert execution.wait(now() + 5).reason == "fenced"
    found = executor.adapter.list_ids(labels)
    states = [executor.adapter.inspect(container)["State"]["Status"] for container in found]
    assert states == ["created"]
    assert remove_all(executor.adapter, labels) == 1
    assert executor.adapter.list_ids(labels) == {}
    execution.remove()
    executor.adapter.close()


def test_a_removal_between_the_last_question_and_the_start_leaves_nothing_to_start_in_docker(
    mark: str, local_image: str
) -> None:
    executor, labels = DockerExecutor(), {"wharfinger.driver": mark}
    given = assignment(["sleep", "60"], image=local_image)
    execution = executor.start(
        given, lambda data: None, labels, lambda: print(remove_all(executor.adapter, labels), "removed")
    )
    end = execution.wait(now() + 5)
    assert (end.reason, end.code) != ("", 0)
    assert executor.adapter.list_ids(labels) == {}
    execution.remove()
    executor.adapter.close()


@pytest.mark.parametrize("use_cgroup", [True, False])
def test_a_removal_between_the_last_question_and_the_start_leaves_nothing_to_start_as_a_process(
    mark: str, *, use_cgroup: bool
) -> None:
    labels = {"wharfinger.driver": mark}
    output = bytearray()
    execution = ProcessExecutor(use_cgroup=use_cgroup).start(
        assignment(["python", "-c", "print('executed')", mark]),
        output.extend,
        labels,
        lambda: print(process_sweep.remove_forcibly(labels), "removed"),
    )
    end = execution.wait(now() + 10)
    execution.remove()
    assert end.reason == "executor_error"
    assert output == b""


@pytest.mark.parametrize("use_cgroup", [True, False])
def test_processes_of_a_living_driver_are_ended_by_force_with_what_escaped_from_them(
    mark: str, *, use_cgroup: bool
) -> None:
    labels = {"wharfinger.driver": mark}
    executor = ProcessExecutor(use_cgroup=use_cgroup)
    code = "import os, time; os.fork() or os.setsid(); time.sleep(600)"
    execution = executor.start(assignment(["python", "-c", code, mark]), lambda data: None, labels)
    with Observer("process", mark, {}) as observer:
        until(lambda: observer.count == 2)
        assert executor.sweep(labels) == 0, "its driver lives"
        assert process_sweep.remove_forcibly({**labels, "other": "x"}) == 0
        assert observer.count == 2
        assert process_sweep.remove_forcibly(labels) == 1
        until(lambda: observer.count == 0, seconds=1)
    end = execution.wait(now() + 10)
    execution.remove()
    assert end.reason == "lost"
    assert process_sweep.remove_forcibly(labels) == 0
