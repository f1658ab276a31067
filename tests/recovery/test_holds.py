"""A replica and the ledger agree about what it holds, also when the reply of a claim was lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from django.db import connections

from admission.models import Tenant
from admission.services.runs import OPERATOR, cancel_runs, take_away
from controlplane.core.audit import SYSTEM
from recovery.replica.holds import HoldKeeper
from recovery.services.replicas import replica_driver
from runners.agent.driver import Driver
from runners.agent.executors.process import ProcessExecutor
from runners.database_control import DatabaseControl
from tests import ledger

pytestmark = pytest.mark.django_db(transaction=True)


class Replica:
    """A driver with its keeper, without the process around them."""

    def __init__(self, slots: int = 2) -> None:
        self.row = ledger.make_replica(executor="process")
        self.control = DatabaseControl(replica_driver(self.row))
        self.driver = Driver(self.control, ProcessExecutor(), slots=slots, poll_seconds=0.05)
        self.keeper = HoldKeeper(self.control, self.driver)
        self.started = False

    def start(self) -> None:
        self.driver.start()
        self.started = True

    def tick_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + ledger.PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, "it did not happen in time"
            self.keeper.tick()
            time.sleep(0.05)


@pytest.fixture
def replica() -> Iterator[Replica]:
    made = Replica()
    yield made
    if made.started:
        assert made.driver.stop_now(20)
    connections.close_all()


@pytest.mark.rule("A10")
def test_an_admission_whose_reply_was_lost_is_taken_up_and_executed(
    make_tenant: Callable[..., Tenant], replica: Replica
) -> None:
    tenant = make_tenant(1)
    (run,) = ledger.submit(tenant, 1, command=["python", "-c", "print('taken up')"])
    ledger.admit_all(replica.control.driver)
    replica.start()
    replica.tick_until(lambda: ledger.state(run) == "succeeded")
    assert (ledger.run(run).attempt, ledger.in_flight(tenant)) == (1, 0)


@pytest.mark.rule("A10", "A29")
def test_unknown_admissions_beyond_the_free_slots_go_back_without_burning_an_attempt(
    make_tenant: Callable[..., Tenant], replica: Replica
) -> None:
    tenant = make_tenant(5)
    runs = ledger.submit(tenant, 4, command=["sleep", "60"])
    ledger.admit_all(replica.control.driver)
    replica.keeper.tick()
    states = sorted(ledger.state(run) for run in runs)
    assert states == ["admitted", "admitted", "queued", "queued"]
    assert {ledger.run(run).tries for run in runs} == {0}
    assert ledger.in_flight(tenant) == ledger.permits(tenant) == 2


@pytest.mark.rule("A10")
def test_a_running_row_that_nobody_executes_is_taken_from_itself(
    make_tenant: Callable[..., Tenant], replica: Replica
) -> None:
    tenant = make_tenant(2)
    (run,) = ledger.submit(tenant)
    ledger.start(replica.control.driver, ledger.admit_all(replica.control.driver))
    replica.keeper.tick()
    assert (ledger.state(run), ledger.run(run).delayed) == ("queued", True)
    assert ledger.in_flight(tenant) == 0


@pytest.mark.rule("A28")
def test_a_cancel_is_seen_stopped_and_confirmed_each_with_its_time(
    make_tenant: Callable[..., Tenant], replica: Replica
) -> None:
    tenant = make_tenant(1)
    (run,) = ledger.submit(tenant, 1, command=["sleep", "60"], stop_grace_seconds=0)
    replica.start()
    replica.tick_until(lambda: ledger.state(run) == "running")
    cancel_runs([run], actor=SYSTEM, reason="a test")
    assert ledger.in_flight(tenant) == 1
    replica.tick_until(lambda: ledger.state(run) == "cancelled")
    row = ledger.run(run)
    times = [row.cancel_requested_at, row.cancel_seen_at, row.cancel_stopped_at, row.cancel_confirmed_at]
    assert all(times)
    assert times == sorted(times)
    assert ledger.in_flight(tenant) == 0


@pytest.mark.rule("R12", "A10")
def test_what_moved_on_is_stopped_and_nothing_is_settled(make_tenant: Callable[..., Tenant], replica: Replica) -> None:
    tenant = make_tenant(1)
    (run,) = ledger.submit(tenant, 1, command=["sleep", "60"], stop_grace_seconds=0)
    replica.start()
    replica.tick_until(lambda: ledger.state(run) == "running")
    held = [(run, ledger.run(run).epoch)]
    take_away(held, OPERATOR)
    replica.tick_until(lambda: replica.driver.held == [])
    assert ledger.run(run).epoch > held[0][1]
    assert ledger.state(run) == "queued"
