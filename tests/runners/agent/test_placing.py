"""Waiting for a place, between claim and start. The limit itself is proved in tests/physical_docker."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest

from runners.agent.assignment import Ending, Verdict
from runners.agent.driver import Driver
from runners.agent.executors.slots import NoPlace, Unrestricted
from tests.runners.agent.conftest import assignment, eventually
from tests.runners.agent.stub import StubControl
from tests.runners.agent.test_driver import StubExecutor


class Places(Unrestricted):
    """A number of them, handed out to whoever asks; `claimable` is what it says is free."""

    def __init__(self, count: int, claimable: int | None = None) -> None:
        self.count = count
        self.claimable = claimable
        self.held: set[str] = set()
        self.refuse = ""
        self.given_back: list[str] = []
        self._asked = 0
        self._lock = threading.Lock()

    def free(self) -> int | None:
        return self.count - len(self.held) if self.claimable is None else self.claimable

    def ask(self, run: int, attempt: int) -> Mapping[str, str]:
        self._asked += 1
        return {"wharfinger.token": f"{run}-{self._asked}"}

    def reserve(self, labels: Mapping[str, str]) -> bool:
        if self.refuse:
            raise NoPlace(self.refuse)
        with self._lock:
            if len(self.held) < self.count:
                self.held.add(labels["wharfinger.token"])
        return labels["wharfinger.token"] in self.held

    def cancel(self, labels: Mapping[str, str]) -> None:
        self.given_back.append(labels["wharfinger.token"])
        self.held.discard(labels["wharfinger.token"])


class Bench:
    def __init__(self, places: Places, runs: int, seconds: float = 20.0) -> None:
        self.control = StubControl([assignment(["true"], run=number) for number in range(1, runs + 1)])
        self.executor = StubExecutor(places)
        self.events: list[str] = []
        self.driver = Driver(
            self.control,
            self.executor,
            slots=4,
            heartbeat_seconds=0.1,
            poll_seconds=0.05,
            place_seconds=seconds,
            on_event=lambda name, /, **fields: self.events.append(name),
        )
        self.driver.start()

    def asked(self) -> set[int]:
        return {capacity.slots for capacity in self.control.capacities}


@pytest.mark.rule("A29")
def test_a_driver_asks_for_no_more_than_there_are_places() -> None:
    bench = Bench(Places(2), 4)
    eventually(lambda: len(bench.executor.made) == 2)
    assert max(bench.asked()) == 2
    assert len(bench.control.queue) == 2
    for execution in bench.executor.made.values():
        execution.end()
    assert bench.driver.stop_now(10)


@pytest.mark.rule("A29", "Q5")
def test_what_waits_is_not_started_and_goes_back_in_time() -> None:
    bench = Bench(Places(1, claimable=2), 2, seconds=1.0)
    eventually(lambda: bench.control.given_back)
    (key,) = bench.control.given_back
    assert bench.control.given_back[key] == "no_slot"
    assert key.run not in bench.executor.made
    assert ("start", 2) not in bench.control.calls
    assert bench.driver.stop_now(10)


@pytest.mark.rule("A28", "A29")
def test_what_is_cancelled_while_it_waits_never_starts() -> None:
    places = Places(0, claimable=1)
    bench = Bench(places, 1)
    eventually(lambda: bench.driver.held)
    (key,) = bench.driver.held
    bench.control.verdicts[key] = Verdict.CANCEL
    eventually(lambda: bench.control.results.get(key))
    assert bench.control.results[key].ending is Ending.CANCELLED
    assert not bench.executor.made
    assert places.given_back
    assert bench.driver.drain(10)


@pytest.mark.rule("G3", "P13")
def test_a_ledger_that_cannot_be_asked_starts_nothing_and_is_told_once() -> None:
    places = Places(1, claimable=1)
    places.refuse = "no place for run 1: Redis cannot be reached"
    bench = Bench(places, 1)
    eventually(lambda: "slots_refused" in bench.events)
    assert not bench.executor.made
    places.refuse = ""
    eventually(lambda: bench.executor.made)
    assert bench.events.count("slots_refused") == 1
    assert bench.driver.stop_now(10)
