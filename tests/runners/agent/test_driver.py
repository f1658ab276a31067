"""The driver's logic: a control plane in memory, an executor whose executions the test ends."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from runners.agent.assignment import Assignment, Ending, RunKey, Verdict
from runners.agent.clock import now
from runners.agent.driver import Driver
from runners.agent.executors.base import (
    ExecutorError,
    Exit,
    ImageUnavailable,
    LogSink,
    Made,
    MayStart,
    NotAdoptable,
    always,
)
from runners.agent.executors.slots import UNRESTRICTED, SlotKeeper
from tests.runners.agent.conftest import assignment, eventually
from tests.runners.agent.stub import StubControl

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

pytestmark = pytest.mark.timeout(60)


class StubExecution:
    def __init__(self, sink: LogSink) -> None:
        self.sink = sink
        self.reason = ""
        self.removed = False
        self.left = False
        self.remove_failures = 0
        self.deadline: float | None = None
        self._end = threading.Event()
        self._exit = Exit(0)

    def end(self, code: int = 0, reason: str = "") -> None:
        self._exit = Exit(code, reason)
        self._end.set()

    def wait(self, deadline: float | None) -> Exit:
        self.deadline = deadline
        if not self._end.wait(None if deadline is None else max(0, deadline - now())):
            self.reason = self.reason or "timeout"
        return Exit(137, self.reason) if self.reason else self._exit

    def stop(self, reason: str) -> None:
        self.reason = self.reason or reason
        self._end.set()

    def let_go(self) -> None:
        self.left = True
        self.stop("adopted")

    def remove(self) -> None:
        if self.remove_failures:
            self.remove_failures -= 1
            raise ExecutorError("made to fail")
        self.removed = True


class StubExecutor:
    name = "stub"

    def __init__(self, slots: SlotKeeper = UNRESTRICTED) -> None:
        self.slots = slots
        self.made: dict[int, StubExecution] = {}
        self.errors: dict[int, Exception] = {}
        self.slow: dict[int, threading.Event] = {}
        self.swept: list[Mapping[str, str]] = []
        self.adopted: list[Mapping[str, str]] = []
        self.at_once = False
        self.pulls: dict[int, threading.Event] = {}
        self.unpullable: dict[int, Exception] = {}

    def prepared(self, given: Assignment) -> bool:
        return given.run not in self.pulls and given.run not in self.unpullable

    def prepare(self, given: Assignment, progress: Any) -> None:
        if given.run in self.unpullable:
            raise self.unpullable[given.run]
        while not self.pulls[given.run].wait(0.05):
            progress("Downloading")

    def start(
        self, given: Assignment, sink: LogSink, labels: Mapping[str, str], may_start: MayStart = always
    ) -> StubExecution:
        if given.run in self.slow:
            self.slow[given.run].wait(20)
        if given.run in self.errors:
            raise self.errors[given.run]
        may_start()
        execution = self.made[given.run] = StubExecution(sink)
        if self.at_once:
            execution.end()
        return execution

    def look(self, labels: Mapping[str, str]) -> list[Made]:
        return []

    def adopt(self, given: Assignment, sink: LogSink, labels: Mapping[str, str]) -> StubExecution:
        self.adopted.append(labels)
        if given.run in self.errors:
            raise self.errors[given.run]
        execution = self.made[given.run] = StubExecution(sink)
        return execution

    def sweep(self, labels: Mapping[str, str], spare: Collection[str] = ()) -> int:
        self.swept.append(labels)
        return 0


class Bench:
    """A driver with its surroundings."""

    def __init__(self) -> None:
        self.control = StubControl()
        self.executor = StubExecutor()
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.driver: Driver | None = None

    def drive(self, runs: int = 0, **options: Any) -> Driver:
        self.control.queue += [assignment(["x"], run=n + 1, **options.pop("spec", {})) for n in range(runs)]
        options = {"slots": 4, "heartbeat_seconds": 0.1, "poll_seconds": 0.05, **options}
        self.driver = Driver(self.control, self.executor, on_event=self._on_event, **options)
        self.driver.start()
        return self.driver

    def _on_event(self, name: str, /, **fields: object) -> None:
        self.events.append((name, fields))

    def named(self, name: str) -> list[dict[str, Any]]:
        return [fields for seen, fields in self.events if seen == name]

    def running(self, run: int = 1) -> StubExecution:
        eventually(lambda: any(fields["run"] == run for fields in self.named("running")))
        return self.executor.made[run]

    def result(self, run: int = 1) -> Any:
        eventually(lambda: RunKey(run, 1) in self.control.results)
        return self.control.results[RunKey(run, 1)]


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.control.fail.clear()
    for execution in bench.executor.made.values():
        execution.remove_failures = 0
    assert bench.driver is None or bench.driver.stop_now(10)
    assert not bench.named("loop_failed")


def test_a_run_from_claim_to_result(bench: Bench) -> None:
    driver = bench.drive(runs=1)
    bench.running().sink(b"hello\n")
    assert driver.held == [RunKey(1, 1)]
    bench.executor.made[1].end(3)
    result = bench.result()
    assert (result.ending, result.exit_code, result.reason) == (Ending.FAILED, 3, "")
    assert bench.control.logs[RunKey(1, 1)] == b"hello\n"
    eventually(lambda: not driver.held)
    order = [name for name, _ in bench.events]
    assert order == ["claimed", "accepted", "running", "ended", "settled"]


@pytest.mark.rule("R2")
def test_a_driver_whose_slots_are_all_taken_is_not_wedged_and_one_whose_claim_never_returns_is(bench: Bench) -> None:
    driver = bench.drive(runs=1, slots=1)
    bench.running()
    for _ in range(10):  # nothing to claim: its claims rest until a slot is freed
        time.sleep(0.05)
        assert driver.wedged_seconds() == 0
    answer = threading.Event()
    claim = bench.control.claim

    def never(*given: Any) -> Any:
        assert answer.wait(30)
        return claim(*given)

    bench.control.claim = never  # type: ignore[method-assign]
    bench.executor.made[1].end()
    eventually(lambda: driver.wedged_seconds() > 0.3)
    answer.set()
    eventually(lambda: driver.wedged_seconds() < 0.1)


def test_never_claims_more_than_its_slots(bench: Bench) -> None:
    driver = bench.drive(runs=10, slots=3)
    eventually(lambda: len(bench.executor.made) == 3)
    time.sleep(0.2)
    assert len(driver.held) == 3
    bench.executor.at_once = True
    for execution in list(bench.executor.made.values()):
        execution.end()
    eventually(lambda: len(bench.control.results) == 10)
    assert max(capacity.slots for capacity in bench.control.capacities) <= 3


def test_memory_and_processors_of_the_machine_bound_it(bench: Bench) -> None:
    bench.control.open.add(RunKey(9, 1))
    driver = bench.drive(memory_mib=1024, cpu=2, slots=8)
    driver.take_up([assignment(["x"], run=9, resources={"memory_mib": 1000, "cpu": 0.5})])
    eventually(lambda: any((c.memory_mib, c.cpu, c.slots) == (24, 1.5, 7) for c in bench.control.capacities))


@pytest.mark.rule("Q4")
def test_lost_claim_is_repeated_under_its_id(bench: Bench) -> None:
    bench.control.lose["claim"] = 2
    bench.drive(runs=4)
    eventually(lambda: len(bench.executor.made) == 4)
    assert len(bench.control._answers) >= 1
    assert sum(len(given) for given in bench.control._answers.values()) == 4


@pytest.mark.rule("A28")
def test_nothing_is_made_before_the_start_was_accepted(bench: Bench) -> None:
    bench.control.fail["start"] = 3
    bench.drive(runs=1)
    eventually(lambda: bench.control.fail["start"] == 0)
    assert [fields["loop"] for fields in bench.named("control_unavailable")] == ["starts"] * 3
    bench.running().end()
    assert bench.result().ending is Ending.SUCCEEDED


def test_cancelled_before_its_start(bench: Bench) -> None:
    bench.control.verdicts[RunKey(1, 1)] = Verdict.CANCEL
    bench.drive(runs=1)
    assert bench.result().ending is Ending.CANCELLED
    assert bench.executor.made == {}


def test_superseded_before_its_start(bench: Bench) -> None:
    bench.control.verdicts[RunKey(1, 1)] = Verdict.SUPERSEDED
    driver = bench.drive(runs=1)
    eventually(lambda: bench.named("superseded"))
    eventually(lambda: not driver.held)
    assert (bench.executor.made, bench.control.results) == ({}, {})


def test_cancel_while_running(bench: Bench) -> None:
    bench.drive(runs=1)
    execution = bench.running()
    bench.control.verdicts[RunKey(1, 1)] = Verdict.CANCEL
    assert bench.result().ending is Ending.CANCELLED
    assert execution.removed


def test_cancel_during_a_slow_start(bench: Bench) -> None:
    bench.executor.slow[1] = threading.Event()
    bench.drive(runs=1)
    eventually(lambda: bench.named("accepted"))
    bench.control.verdicts[RunKey(1, 1)] = Verdict.CANCEL
    eventually(lambda: bench.named("stopping"))
    bench.executor.slow[1].set()
    assert bench.result().ending is Ending.CANCELLED


@pytest.mark.rule("R8")
def test_superseded_while_running_stops_and_says_nothing(bench: Bench) -> None:
    driver = bench.drive(runs=1)
    execution = bench.running()
    bench.control.open.clear()
    eventually(lambda: not driver.held)
    assert execution.removed
    assert execution.reason == "superseded"
    assert bench.control.results == {}


def test_superseded_is_also_learned_from_the_log(bench: Bench) -> None:
    driver = bench.drive(runs=1, heartbeat_seconds=60)
    execution = bench.running()
    bench.control.open.clear()
    execution.sink(b"late")
    eventually(lambda: not driver.held)
    assert execution.reason == "superseded"


def test_deadline_counts_from_the_accepted_start(bench: Bench) -> None:
    before = now()
    bench.drive(runs=1, spec={"timeout_seconds": 0.3})
    result = bench.result()
    assert (result.ending, result.reason) == (Ending.TIMED_OUT, "timeout")
    assert now() - before >= 0.3


def test_slot_is_kept_until_the_removal_is_confirmed(bench: Bench) -> None:
    driver = bench.drive(runs=2, slots=1)
    execution = bench.running(1)
    execution.remove_failures = 2
    execution.end()
    eventually(lambda: len(bench.named("remove_failed")) == 1)
    assert bench.control.results == {}
    assert driver.held == [RunKey(1, 1)]
    assert bench.result().ending is Ending.SUCCEEDED
    bench.running(2)


def test_executor_errors_become_results(bench: Bench) -> None:
    bench.executor.errors = {1: ImageUnavailable("no such image"), 2: ExecutorError("no disk"), 3: ValueError("bug")}
    bench.drive(runs=3)
    assert [bench.result(n).reason for n in (1, 2, 3)] == ["image_unavailable", "executor_error", "executor_error"]
    assert bench.result(1).detail == "no such image"
    assert [labels["wharfinger.run"] for labels in bench.executor.swept] == ["3"], "unknown what was made: swept"


def test_oom_is_said(bench: Bench) -> None:
    bench.drive(runs=1)
    bench.running().end(137, "oom")
    assert (bench.result().ending, bench.result().reason) == (Ending.FAILED, "oom")


def test_lost_execution_is_given_back(bench: Bench) -> None:
    bench.drive(runs=1)
    bench.running().end(137, "lost")
    eventually(lambda: bench.control.given_back == {RunKey(1, 1): "lost"})


@pytest.mark.rule("Q12")
def test_result_survives_an_outage(bench: Bench) -> None:
    driver = bench.drive(runs=1)
    execution = bench.running()
    bench.control.fail.update({"settle": 4, "claim": 4, "heartbeat": 4, "append_log": 2})
    execution.sink(b"the log comes first")
    execution.end()
    assert bench.result().ending is Ending.SUCCEEDED
    assert bench.control.logs[RunKey(1, 1)] == b"the log comes first"
    eventually(lambda: not driver.held)


@pytest.mark.rule("Q9")
def test_lost_answer_to_a_result_is_repeated(bench: Bench) -> None:
    bench.control.lose["settle"] = 2
    driver = bench.drive(runs=1)
    bench.running().end()
    eventually(lambda: not driver.held)
    assert len([call for call in bench.control.calls if call[0] == "settle"]) == 3
    assert not bench.named("superseded")


def test_ends_are_reported_together(bench: Bench) -> None:
    bench.executor.at_once = True
    bench.control.delay["settle"] = 0.1
    bench.drive(runs=60, slots=60)
    eventually(lambda: len(bench.control.results) == 60)
    assert len([call for call in bench.control.calls if call[0] == "settle"]) <= 10
    assert len([call for call in bench.control.calls if call[0] == "start"]) <= 10


def test_a_result_that_breaks_the_call_does_not_hold_up_others(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    settle = bench.control.settle

    def picky(results: Any) -> Any:
        if any(result.run == 1 for result in results):
            raise ValueError("poison")
        return settle(results)

    bench.executor.at_once = True
    monkeypatch.setattr(bench.control, "settle", picky)
    bench.drive(runs=4)
    eventually(lambda: len(bench.control.results) == 3)
    monkeypatch.undo()
    bench.result(1)
    bench.events.clear()


def test_a_slow_start_holds_up_nothing(bench: Bench) -> None:
    bench.executor.slow[1] = threading.Event()
    bench.drive(runs=3, slots=2)
    bench.running(2).end()
    bench.running(3)
    bench.executor.slow[1].set()
    bench.running(1)


def test_slow_start_calls_do_not_hold_up_claims(bench: Bench) -> None:
    bench.control.delay["start"] = 1.0
    driver = bench.drive(runs=1, slots=2)
    eventually(lambda: driver.held)
    bench.control.queue.append(assignment(["x"], run=2))
    eventually(lambda: len(driver.held) == 2, seconds=0.8)


def test_wake_claims_at_once(bench: Bench) -> None:
    driver = bench.drive(poll_seconds=30)
    eventually(lambda: bench.control.capacities)
    bench.control.queue.append(assignment(["x"]))
    began = time.monotonic()
    driver.wake()
    bench.running()
    assert time.monotonic() - began < 2


def test_heartbeat_lists_exactly_what_is_held(bench: Bench) -> None:
    bench.drive(runs=2)
    bench.running(1)
    bench.running(2)
    eventually(lambda: ("heartbeat", 2) in bench.control.calls)
    bench.executor.made[1].end()
    bench.result(1)
    bench.control.calls.clear()
    eventually(lambda: ("heartbeat", 1) in bench.control.calls)
    assert ("heartbeat", 0) not in bench.control.calls


@pytest.mark.rule("R14")
def test_drain_finishes_what_runs_and_gives_back_the_rest(bench: Bench) -> None:
    driver = bench.drive(runs=1)
    bench.running(1)
    bench.control.fail["start"] = 50
    driver.take_up([assignment(["x"], run=2)])
    bench.control.open.add(RunKey(2, 1))
    assert not driver.drain(0.5)
    assert bench.control.given_back == {RunKey(2, 1): "drained"}
    bench.control.queue.append(assignment(["x"], run=3))
    bench.executor.made[1].end()
    assert driver.drain(10)
    assert bench.control.results.keys() == {RunKey(1, 1)}
    assert len(bench.control.queue) == 1


def test_stop_now_stops_removes_and_gives_back(bench: Bench) -> None:
    driver = bench.drive(runs=2)
    bench.running(1)
    bench.running(2)
    assert driver.stop_now(10)
    assert all(execution.removed for execution in bench.executor.made.values())
    assert set(bench.control.given_back.values()) == {"shutdown"}
    assert bench.control.results == {}


@pytest.mark.rule("A10")
def test_reconcile_in_both_directions(bench: Bench) -> None:
    driver = bench.drive(runs=2)
    bench.running(1)
    execution = bench.running(2)
    unknown = driver.reconcile(lambda: {RunKey(1, 1), RunKey(77, 3)})
    assert unknown == [RunKey(77, 3)]
    eventually(lambda: execution.removed)
    assert not bench.executor.made[1].reason


def test_reconcile_does_not_call_an_unanswered_claim_unknown(bench: Bench) -> None:
    bench.control.lose["claim"] = 1_000
    driver = bench.drive(runs=1)
    eventually(lambda: bench.control.open)
    assert driver.reconcile(lambda: set(bench.control.open)) == []
    bench.control.lose.clear()
    bench.running(1)


# -- adoption ---------------------------------------------------------------------------------------------------------

MAKER = {"wharfinger.driver": "a dead one"}


def taken_over(bench: Bench, *, deadline: float = 60.0) -> Driver:
    """A driver that goes on with run 1, which another one started."""
    driver = bench.drive(slots=1)
    given = assignment(["x"], run=1)
    bench.control.open.add(given.key)
    assert driver.take_over(given, MAKER, now() + deadline)
    assert not driver.take_over(given, MAKER, now() + deadline), "held already"
    return driver


@pytest.mark.rule("R10")
def test_what_a_dead_driver_started_is_waited_for_under_its_labels_and_reported_as_ones_own(bench: Bench) -> None:
    driver = taken_over(bench)
    bench.running().sink(b"all of it\n")
    bench.executor.made[1].end(0)
    assert bench.result().ending is Ending.SUCCEEDED
    assert bench.executor.adopted == [{**MAKER, "wharfinger.run": "1", "wharfinger.attempt": "1"}]
    assert bench.control.logs[RunKey(1, 1)] == b"all of it\n"
    assert ("start", 1) not in bench.control.calls
    eventually(lambda: not driver.held)


@pytest.mark.rule("R10")
def test_while_more_is_held_than_there_are_slots_nothing_is_claimed(bench: Bench) -> None:
    driver = taken_over(bench)
    bench.control.queue.append(assignment(["x"], run=2))
    driver.wake()
    bench.running()
    time.sleep(0.2)
    assert 2 not in bench.executor.made
    bench.executor.made[1].end()
    bench.running(2).end()
    bench.result(2)


@pytest.mark.rule("R10", "R9")
def test_what_is_not_there_any_more_is_given_back_and_not_failed(bench: Bench) -> None:
    bench.executor.errors[1] = NotAdoptable("gone")
    driver = taken_over(bench)
    eventually(lambda: bench.control.given_back == {RunKey(1, 1): "lost"})
    eventually(lambda: not driver.held)


@pytest.mark.rule("R10")
def test_its_deadline_is_the_one_it_was_given(bench: Bench) -> None:
    taken_over(bench, deadline=0.3)
    assert bench.result().ending is Ending.TIMED_OUT


@pytest.mark.rule("R12")
def test_what_was_adopted_by_another_is_let_go_and_nothing_is_said(bench: Bench) -> None:
    driver = bench.drive(runs=1)
    execution = bench.running()
    bench.control.adopted.add(RunKey(1, 1))
    bench.control.open.clear()
    eventually(lambda: not driver.held)
    assert (execution.left, execution.reason) == (True, "adopted")
    assert bench.named("let_go")
    assert bench.control.results == {}
    assert bench.control.given_back == {}


@pytest.mark.rule("R12", "G7")
def test_while_it_is_not_known_which_it_is_neither_stopped_nor_let_go(bench: Bench) -> None:
    driver = bench.drive(runs=1)
    execution = bench.running()
    bench.control.fail["goes_on"] = 1000
    bench.control.open.clear()
    eventually(lambda: bench.control.calls.count(("goes_on", 1)) >= 3)
    assert (execution.left, execution.reason) == (False, "")
    assert driver.held == [RunKey(1, 1)]
    bench.control.adopted.add(RunKey(1, 1))
    bench.control.fail.clear()
    eventually(lambda: execution.left)
