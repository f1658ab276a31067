"""The ledger's side of an adoption: from whom, by whom, exactly once, and what stays as it was (rule R10)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connections
from django.utils import timezone

from admission.drivers import Driver
from admission.models import Attempt, Permit, Run, Tenant
from admission.services.runs import (
    Hold,
    HoldVerdict,
    Settlement,
    adopted_by_others,
    cancel_runs,
    read_holds,
    renew_runs,
    settle_runs,
)
from controlplane.core.audit import SYSTEM
from controlplane.core.identity import boot_id, current_process, machine_id
from recovery.models import Replica
from recovery.replica.adoption import Legacy
from recovery.replica.executor import LABEL_DRIVER
from recovery.replica.holds import HoldKeeper
from recovery.services.adopting import claim_orphans
from recovery.services.deaths import declare_and_claim
from recovery.services.orphans import Dead, LeftoversRemain, Orphan
from recovery.services.replicas import drain_replica, replica_driver
from runners.agent.driver import Driver as AgentDriver
from runners.agent.executors.docker import DockerExecutor
from runners.agent.executors.process import ProcessExecutor
from runners.agent.labels import LABEL_ATTEMPT, LABEL_RUN
from runners.database_control import DatabaseControl
from runners.services.logs import HoldSuperseded, OffsetMismatch, append_log, read_log
from tests import ledger
from tests.runners.agent.proxy import DockerProxy

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.rule("R10")]


class Case:
    """One started run of a replica that was declared dead."""

    def __init__(self, tenant: Tenant, **spec: Any) -> None:
        self.tenant = tenant
        self.row = ledger.make_replica()
        self.old = replica_driver(self.row)
        [self.run] = ledger.submit(tenant, 1, **spec)
        [self.held] = ledger.start(self.old, ledger.admit_all(self.old))
        self.new = replica_driver(ledger.make_replica())

    def declare(self) -> None:
        Replica.objects.filter(pk=self.row.pk).update(beat_at=timezone.now() - timedelta(hours=1))
        assert declare_and_claim(self.row.pk, claimant="a test", proof="stale")

    def dead(self) -> Dead:
        return Dead(**{name: getattr(self.row, name) for name in Dead.__slots__})

    def orphan(self) -> Orphan:
        return Orphan(self.run, self.held[1], 1, "running")

    def adopt(self, driver: Driver | None = None) -> dict[Hold, Hold]:
        return claim_orphans(driver or self.new, self.dead(), [self.orphan()])


@pytest.fixture
def case(make_tenant: Callable[..., Tenant]) -> Case:
    return Case(make_tenant(1))


def succeeded(hold: Hold) -> Settlement:
    return Settlement(*hold, "succeeded", exit_code=0)


@pytest.mark.rule("R8", "A6")
def test_the_attempt_and_its_permit_go_on_renewed_and_only_the_new_driver_ends_it(case: Case) -> None:
    Permit.objects.update(renewed_at=timezone.now() - timedelta(hours=1))
    before = Attempt.objects.values("number", "admitted_at", "started_at", "maker").get()
    case.declare()

    [(old, new)] = case.adopt().items()

    assert (old, new) == (case.held, (case.run, case.held[1] + 1))
    run = ledger.run(case.run)
    assert (run.state, run.attempt, run.tries, run.driver_id) == ("running", 1, 1, case.new.id)
    assert run.driver_incarnation == case.new.incarnation
    permit = Permit.objects.get()
    assert (permit.holder, permit.driver_name) == (f"{case.run}.1", case.new.name)
    assert permit.renewed_at > timezone.now() - timedelta(minutes=1)
    assert Attempt.objects.values("number", "admitted_at", "started_at", "maker").get() == before
    assert before["maker"] == case.row.incarnation
    ledger.assert_conserved()
    late, ended = settle_runs(case.old, [succeeded(case.held)])
    assert (late[case.held], ended) == (HoldVerdict.SUPERSEDED, [])
    assert renew_runs(case.old, [case.held])[case.held] is HoldVerdict.SUPERSEDED
    first, ended = settle_runs(case.new, [succeeded(new)])
    again, _ = settle_runs(case.new, [succeeded(new)])
    assert (first[new], again[new], len(ended)) == (HoldVerdict.OK, HoldVerdict.OK, 1), "a repeat of the same result"
    ledger.assert_conserved()


@pytest.mark.rule("G7", "R3")
def test_nothing_is_adopted_from_a_replica_that_is_merely_silent(case: Case) -> None:
    Replica.objects.filter(pk=case.row.pk).update(beat_at=timezone.now() - timedelta(hours=1))
    assert case.adopt() == {}
    assert ledger.run(case.run).driver_id == case.old.id


@pytest.mark.rule("R12")
def test_a_replica_that_was_declared_dead_itself_adopts_nothing_and_one_that_drains_does(case: Case) -> None:
    case.declare()
    gone = ledger.make_replica(declared_dead_at=timezone.now())
    assert case.adopt(replica_driver(gone)) == {}
    drains = ledger.make_replica()
    assert drain_replica(drains, actor=SYSTEM, reason="a test")
    assert case.adopt(replica_driver(drains)) != {}


def test_what_was_admitted_and_not_started_is_not_adopted(make_tenant: Callable[..., Tenant]) -> None:
    case = Case(make_tenant(2))
    [run] = ledger.submit(case.tenant, 1)
    [admitted] = ledger.admit_all(case.old)
    case.declare()
    assert claim_orphans(case.new, case.dead(), [Orphan(run, admitted.epoch, 1, "admitted")]) == {}


@pytest.mark.rule("R8")
def test_of_two_adopters_at_once_one_wins_and_the_other_is_told_so(
    case: Case, connect: Callable[..., psycopg.Connection[Any]]
) -> None:
    """Both have judged the row by the time it is free; the statement judges it again."""
    case.declare()
    other = replica_driver(ledger.make_replica())
    blocker, observer = connect(), connect(autocommit=True)
    blocker.execute("SELECT FROM admission_run WHERE id = %s FOR NO KEY UPDATE", (case.run,))
    calls = [ledger.Concurrent(case.adopt, driver) for driver in (case.new, other)]
    for call in calls:
        ledger.until_waiting(observer, call)
    blocker.rollback()
    won = [call.result() for call in calls]
    assert sorted(len(each) for each in won) == [0, 1]
    assert ledger.run(case.run).epoch == case.held[1] + 1
    ledger.assert_conserved()


@pytest.mark.rule("R8")
def test_an_adoption_that_waited_for_the_take_away_of_the_run_adopts_nothing(
    case: Case, connect: Callable[..., psycopg.Connection[Any]]
) -> None:
    case.declare()
    blocker, observer = connect(), connect(autocommit=True)
    blocker.execute(
        "UPDATE admission_run SET state = 'queued', epoch = epoch + 1, driver_id = NULL WHERE id = %s",
        (case.run,),
    )
    call = ledger.Concurrent(case.adopt)
    ledger.until_waiting(observer, call)
    blocker.commit()
    assert call.result() == {}


@pytest.mark.rule("A28")
def test_a_cancel_that_came_while_nobody_drove_it_is_answered_by_the_new_driver(case: Case) -> None:
    cancel_runs([case.run], actor=SYSTEM, reason="a test")
    case.declare()
    [new] = case.adopt().values()
    assert [row["cancel"] for row in read_holds(case.new)] == [True]
    assert renew_runs(case.new, [new])[new] is HoldVerdict.CANCEL
    assert ledger.in_flight(case.tenant) == 1, "until it is confirmed stopped"
    settle_runs(case.new, [Settlement(*new, "cancelled", "cancelled")])
    assert (ledger.state(case.run), ledger.run(case.run).attempt) == ("cancelled", 1)
    ledger.assert_conserved()


@pytest.mark.rule("G5")
def test_the_time_left_counts_from_the_start_of_the_attempt(make_tenant: Callable[..., Tenant]) -> None:
    case = Case(make_tenant(1), timeout_seconds=100)
    Run.objects.update(started_at=timezone.now() - timedelta(seconds=70))
    case.declare()
    case.adopt()
    [row] = read_holds(case.new)
    assert 25 < row["left"] <= 30
    assert row["maker"] == case.row.incarnation


@pytest.mark.rule("Q8")
def test_the_log_goes_on_where_it_stood_and_the_old_driver_adds_nothing(case: Case) -> None:
    append_log(case.old, *case.held, 0, b"01234")
    case.declare()
    [new] = case.adopt().values()
    with pytest.raises(HoldSuperseded):
        append_log(case.old, *case.held, 5, b"late")
    with pytest.raises(OffsetMismatch) as told:
        append_log(case.new, *new, 0, b"0123456789")
    assert told.value.stored == 5
    assert append_log(case.new, *new, 5, b"56789").stored == 10
    assert read_log(case.run).data == b"0123456789"


@pytest.mark.rule("R12")
def test_whether_an_attempt_goes_on_elsewhere_is_judged_by_the_runs_row(case: Case) -> None:
    attempt = [(case.run, 1)]
    assert adopted_by_others(case.old, attempt) == set(), "still its own"
    case.declare()
    [new] = case.adopt().values()
    assert adopted_by_others(case.old, attempt) == set(attempt)
    assert adopted_by_others(case.new, attempt) == set()
    settle_runs(case.new, [succeeded(new)])
    assert adopted_by_others(case.old, attempt) == set(), "it has ended"


def test_an_adoption_of_which_nothing_is_left_is_given_back(case: Case) -> None:
    """Its answer was lost, or the adopter died between the row and the container: the row says all that is needed."""
    case.declare()
    case.adopt()
    control = DatabaseControl(case.new)
    driver = AgentDriver(control, ProcessExecutor(), slots=1, poll_seconds=0.05)
    keeper = HoldKeeper(control, driver)
    driver.start()
    try:
        keeper.tick()
        ledger.until(lambda: ledger.state(case.run) == "queued")
        assert [(a.ending, a.detail) for a in ledger.attempts(case.run)] == [("interrupted", "lost")]
    finally:
        assert driver.stop_now(20)
        connections.close_all()


@pytest.fixture
def executor(local_image: str) -> Iterator[DockerExecutor]:
    made = DockerExecutor(image_aliases={"python:3-slim": local_image})
    yield made
    made.adapter.close()


@pytest.fixture
def left_running(case: Case, executor: DockerExecutor, local_image: str) -> Iterator[str]:
    """The dead replica was on this machine, and its container runs on."""
    gone = {"machine": machine_id(), "boot_id": boot_id(), "pid": 2**22 - 1, "pid_start": 1, "executor": "docker"}
    Replica.objects.filter(pk=case.row.pk).update(**gone)
    case.row.refresh_from_db()
    labels = {LABEL_DRIVER: str(case.row.incarnation), LABEL_RUN: str(case.run), LABEL_ATTEMPT: "1"}
    name = f"wharfinger-left-{case.row.incarnation.hex[:12]}"
    asked = {"Image": local_image, "Cmd": ["sleep", "600"], "Labels": labels, "HostConfig": {"NetworkMode": "none"}}
    container = executor.adapter.create(name, asked)
    try:
        executor.adapter.start(container)
        yield container
    finally:
        executor.sweep(labels)


@pytest.mark.rule("A16")
@pytest.mark.parametrize(("fence", "adopts"), [("off", True), ("strict", False)])
def test_under_strict_fencing_nothing_is_adopted_for_the_watchdog_removes_all_at_once(
    case: Case, executor: DockerExecutor, left_running: str, settings: Any, fence: str, *, adopts: bool
) -> None:
    settings.CONTROLPLANE = {**settings.CONTROLPLANE, "fence": fence}
    case.declare()
    found = Legacy(executor, case.new).adopt(case.dead(), [case.orphan()])
    assert [(key.run, finding.outcome) for key, finding in found.items()] == [(case.run, "adopted")] * adopts


@pytest.mark.rule("P8", "R9")
def test_the_sweep_of_a_dead_replica_spares_what_was_adopted_and_removes_the_rest(
    case: Case, executor: DockerExecutor, left_running: str
) -> None:
    case.declare()
    legacy = Legacy(executor, case.new)
    legacy.adopt(case.dead(), [case.orphan()])
    for late in (legacy, Legacy(executor, replica_driver(ledger.make_replica()))):
        late.sweep(case.dead())
        assert not executor.adapter.is_gone(left_running), "it goes on under another"
    settle_runs(case.new, [succeeded((case.run, case.held[1] + 1))])
    legacy.sweep(case.dead())
    assert executor.adapter.is_gone(left_running)


@pytest.mark.rule("R12", "G7")
def test_of_a_replica_whose_process_lives_nothing_is_adopted_or_removed(
    case: Case, executor: DockerExecutor, left_running: str
) -> None:
    me = current_process()
    Replica.objects.filter(pk=case.row.pk).update(boot_id=me.boot_id, pid=me.pid, pid_start=me.pid_start)
    case.row.refresh_from_db()
    case.declare()
    legacy = Legacy(executor, case.new)
    assert legacy.adopt(case.dead(), [case.orphan()]) == {}
    legacy.sweep(case.dead())
    assert not executor.adapter.is_gone(left_running)


@pytest.mark.rule("G7", "R9")
def test_a_daemon_that_does_not_answer_leaves_it_undecided(
    case: Case, left_running: str, local_image: str, tmp_path: Path
) -> None:
    case.declare()
    with DockerProxy(tmp_path / "docker.sock") as proxy:
        executor = DockerExecutor(proxy.adapter)
        proxy.cut = b"/containers/json"
        legacy = Legacy(executor, case.new)
        [finding] = legacy.adopt(case.dead(), [case.orphan()]).values()
        assert finding.outcome == "deferred"
        with pytest.raises(LeftoversRemain):
            legacy.sweep(case.dead())
    assert ledger.run(case.run).driver_id == case.old.id
