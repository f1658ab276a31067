"""Each pair of verbs that can meet over one run or one tenant, made to meet."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connections

from admission.engine import clear_backlogs
from admission.models import Attempt, Counter, Run, Tenant
from admission.services.deleting import delete_tenant
from admission.services.quotas import remove_quota, set_quota
from admission.services.readings import read_highest_concurrency
from admission.services.runs import (
    OPERATOR,
    START_DEADLINE,
    Settlement,
    cancel_runs,
    renew_runs,
    settle_runs,
    start_runs,
    take_away,
)
from admission.services.tenants import pause_tenant
from admission.sql import admitting
from controlplane.core.audit import SYSTEM
from controlplane.core.errors import Conflict, NotFound
from recovery.models import Replica
from recovery.services.replicas import replica_driver
from tests import ledger

pytestmark = pytest.mark.django_db(transaction=True)


def lock_run(connection: Any, run: int) -> None:
    connection.execute("SELECT FROM admission_run WHERE id = %s FOR NO KEY UPDATE", (run,))


class Meeting:
    """One running run of a tenant with quota 1, its row locked by a third party while two verbs line up behind it."""

    def __init__(self, connect: Any, *, started: bool = True) -> None:
        self.tenant, self.driver = ledger.make_tenant(1), ledger.make_driver()
        [self.run] = ledger.submit(self.tenant, retry={"backoff_seconds": 0})
        admitted = ledger.admit_all(self.driver)
        self.hold = ledger.holds(admitted)[0]
        if started:
            ledger.start(self.driver, admitted)
        self.gate, self.observer = connect(), connect(autocommit=True)

    def in_order(self, first: Any, second: Any) -> tuple[Any, Any]:
        """Both wait for the run's row, `first` ahead of `second`, then the gate opens."""
        lock_run(self.gate, self.run)
        calls = []
        for verb in (first, second):
            calls.append(ledger.Concurrent(verb))
            ledger.until_waiting(self.observer, calls[-1])
        self.gate.commit()
        return calls[0].result(), calls[1].result()

    def settle(self) -> Any:
        return settle_runs(self.driver, [Settlement(*self.hold, "succeeded", exit_code=0)])[0][self.hold]

    def cancel(self) -> Any:
        return cancel_runs([self.run], actor=SYSTEM)

    def confirm(self) -> Any:
        return settle_runs(self.driver, [Settlement(*self.hold, "cancelled")])[0][self.hold]

    def take(self) -> Any:
        return take_away([self.hold], OPERATOR)

    def start(self) -> Any:
        return start_runs(self.driver, [self.hold])[self.hold]

    def renew(self) -> Any:
        return renew_runs(self.driver, [self.hold])[self.hold]

    def give_back(self) -> Any:
        return ledger.give_back(self.driver, [self.hold])

    def check(self, state: str) -> None:
        assert ledger.state(self.run) == state
        assert ledger.in_flight(self.tenant) == (1 if state in ("admitted", "running") else 0)
        ledger.assert_conserved()


@pytest.mark.rule("A8", "A28", "G6")
def test_a_cancel_before_the_result_changes_nothing_of_a_run_that_ended_by_itself(connect: Any) -> None:
    m = Meeting(connect)
    requested, verdict = m.in_order(m.cancel, m.settle)
    assert (requested, verdict) == ({m.run: "running"}, "ok")
    m.check("succeeded")


@pytest.mark.rule("A8", "G6")
def test_a_cancel_behind_the_result_finds_nothing_open(connect: Any) -> None:
    m = Meeting(connect)
    verdict, requested = m.in_order(m.settle, m.cancel)
    assert (verdict, requested) == ("ok", {})
    m.check("succeeded")
    assert ledger.run(m.run).cancel_requested_at is None


@pytest.mark.rule("A10", "A28")
def test_a_cancel_before_the_start_refuses_the_start(connect: Any) -> None:
    m = Meeting(connect, started=False)
    requested, verdict = m.in_order(m.cancel, m.start)
    assert (requested, verdict) == ({m.run: "admitted"}, "cancel")
    m.check("admitted")
    assert m.confirm() == "ok"
    m.check("cancelled")


@pytest.mark.rule("A28")
def test_a_cancel_behind_the_start_waits_for_the_confirmed_stop(connect: Any) -> None:
    m = Meeting(connect, started=False)
    assert m.in_order(m.start, m.cancel) == ("ok", {m.run: "running"})
    m.check("running")
    assert m.renew() == "cancel"
    m.check("running")
    assert m.confirm() == "ok"
    m.check("cancelled")
    row = ledger.run(m.run)
    assert row.cancel_requested_at <= row.cancel_seen_at <= row.cancel_stopped_at <= row.cancel_confirmed_at


@pytest.mark.rule("R8", "A8", "G6")
def test_a_result_behind_a_take_away_is_superseded_and_frees_nothing(connect: Any) -> None:
    m = Meeting(connect)
    taken, verdict = m.in_order(m.take, m.settle)
    assert [t.state for t in taken] == ["queued"]
    assert verdict == "superseded"
    m.check("queued")


@pytest.mark.rule("R8", "G6")
def test_a_take_away_behind_the_result_takes_nothing(connect: Any) -> None:
    m = Meeting(connect)
    assert m.in_order(m.settle, m.take) == ("ok", [])
    m.check("succeeded")


@pytest.mark.rule("R8", "A11")
def test_a_renewal_behind_a_take_away_is_told_that_the_hold_is_gone(connect: Any) -> None:
    m = Meeting(connect)
    taken, verdict = m.in_order(m.take, m.renew)
    assert (len(taken), verdict) == (1, "superseded")
    m.check("queued")


@pytest.mark.rule("R8", "A11")
def test_a_renewal_before_a_lease_is_taken_saves_it(connect: Any) -> None:
    m = Meeting(connect, started=False)
    Run.objects.filter(pk=m.run).update(start_deadline=ledger.run(m.run).admitted_at)
    verdict, taken = m.in_order(m.start, lambda: take_away([m.hold], START_DEADLINE))
    assert (verdict, taken) == ("ok", [])
    m.check("running")


@pytest.mark.rule("A28", "R8")
@pytest.mark.parametrize("started", [False, True])
def test_a_take_away_that_waited_for_a_cancel_ends_the_run_cancelled(connect: Any, started: bool) -> None:
    m = Meeting(connect, started=started)
    requested, taken = m.in_order(m.cancel, m.take)
    assert list(requested) == [m.run]
    assert [t.state for t in taken] == ["cancelled"]
    m.check("cancelled")


@pytest.mark.rule("A28")
def test_a_cancel_behind_a_take_away_ends_the_queued_run(connect: Any) -> None:
    m = Meeting(connect)
    taken, ended = m.in_order(m.take, m.cancel)
    assert [t.state for t in taken] == ["queued"]
    assert ended == {m.run: "cancelled"}
    m.check("cancelled")


@pytest.mark.rule("R8", "A8")
def test_two_take_aways_at_once_take_once(connect: Any) -> None:
    m = Meeting(connect)
    first, second = m.in_order(m.take, m.give_back)
    assert len(first) == 1
    assert second is None
    m.check("queued")
    assert ledger.run(m.run).tries == 1


@pytest.mark.rule("A8", "R8")
def test_a_stale_epoch_settles_nothing_and_frees_no_successors_permit(make_tenant: Any, make_driver: Any) -> None:
    tenant, old, new = make_tenant(1), make_driver(), make_driver()
    [run] = ledger.submit(tenant, retry={"backoff_seconds": 0})
    stale = ledger.start(old, ledger.admit_all(old))[0]
    take_away([stale], OPERATOR)
    current = ledger.start(new, ledger.admit_all(new))[0]
    for driver, hold in ((old, stale), (old, current), (new, stale)):
        verdicts, ended = settle_runs(driver, [Settlement(*hold, "succeeded")])
        assert (verdicts[hold], ended) == ("superseded", [])
        assert start_runs(driver, [hold])[hold] == "superseded"
        assert renew_runs(driver, [hold])[hold] == "superseded"
        assert ledger.in_flight(tenant) == 1
    assert ledger.state(run) == "running"
    ledger.assert_conserved()


@pytest.mark.rule("R8")
def test_a_stale_hold_beside_the_current_one_gets_no_answer_meant_for_it(make_tenant: Any, make_driver: Any) -> None:
    tenant, driver = make_tenant(1), make_driver()
    ledger.submit(tenant, retry={"backoff_seconds": 0})
    stale = ledger.holds(ledger.admit_all(driver))[0]
    ledger.give_back(driver, [stale])
    current = ledger.holds(ledger.admit_all(driver))[0]
    assert start_runs(driver, [stale, current]) == {stale: "superseded", current: "ok"}
    verdicts, _ = settle_runs(driver, [Settlement(*stale, "succeeded"), Settlement(*current, "succeeded")])
    assert verdicts == {stale: "superseded", current: "ok"}


@pytest.mark.rule("A8", "A5")
def test_a_result_repeated_answers_the_same_and_changes_nothing(connect: Any) -> None:
    m = Meeting(connect)
    assert [m.settle() for _ in range(3)] == ["ok"] * 3
    assert settle_runs(m.driver, [Settlement(*m.hold, "failed", exit_code=1)])[0][m.hold] == "superseded"
    m.check("succeeded")
    assert Attempt.objects.get(run=m.run).ending == "succeeded"


@pytest.mark.rule("A5", "A9", "A28")
def test_a_run_given_back_while_its_tenant_was_out_of_the_order_frees_its_permit_and_is_served_again(
    make_tenant: Any, make_driver: Any
) -> None:
    """Lowering the counter and marking the backlog are one write: of two, PostgreSQL drops one without a word."""
    tenant, driver = make_tenant(1), make_driver()
    [run] = ledger.submit(tenant)
    held = ledger.holds(ledger.admit_all(driver))
    clear_backlogs([ledger.counter(tenant).pk])
    assert ledger.counter(tenant).backlog is False
    ledger.give_back(driver, held)
    ledger.assert_conserved()
    assert [a.run for a in ledger.admit_all(driver)] == [run]


@pytest.mark.rule("A4", "A30", "G1")
def test_two_drivers_admitting_at_the_same_instant_share_a_quota_of_three_exactly(db: None) -> None:
    share_a_quota_of_three(20)


def share_a_quota_of_three(rounds: int) -> None:
    """Two drivers, the same instant, quota 3, 8 runs: exactly 3, each round."""
    drivers = [ledger.make_driver() for _ in range(2)]
    barrier = threading.Barrier(2)
    admitted: list[list[Any]] = [[], []]

    def drain(index: int) -> None:
        try:
            barrier.wait()
            admitted[index] = ledger.admit_all(drivers[index])
        finally:
            connections.close_all()

    for _ in range(rounds):
        tenant = ledger.make_tenant(3)
        ledger.submit(tenant, 8)
        threads = [threading.Thread(target=drain, args=(n,)) for n in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(ledger.PATIENCE_SECONDS)
        # Rows that the other was just looking at are skipped, so a drain may find fewer; a later one finds the rest.
        total = sum(map(len, admitted)) + len(ledger.admit_all(drivers[0]))
        assert total == 3
        assert ledger.in_flight(tenant) == 3
        assert read_highest_concurrency(tenant.pk) == 3
        Run.objects.filter(tenant=tenant, state="queued").delete()
    ledger.assert_conserved()


@pytest.mark.rule("A30")
def test_a_successor_is_admitted_after_its_predecessors_release_in_the_history(connect: Any) -> None:
    m = Meeting(connect)
    [next_run] = ledger.submit(m.tenant)
    other = ledger.make_driver()
    m.gate.execute("SELECT FROM admission_counter WHERE key = %s FOR NO KEY UPDATE", (str(m.tenant.pk),))
    settling = ledger.Concurrent(m.settle)
    ledger.until_waiting(m.observer, settling)
    m.gate.commit()
    settling.result()
    assert [a.run for a in ledger.admit_all(other)] == [next_run]
    assert ledger.attempts(m.run)[0].released_at <= ledger.attempts(next_run)[0].admitted_at
    assert read_highest_concurrency(m.tenant.pk) == 1


@pytest.mark.rule("A14", "A5")
def test_a_first_quota_waits_for_an_admission_under_way_and_back_fills_it(connect: Any) -> None:
    """T9 against T1: nobody is admitted between the look at what is in flight and the quota."""
    tenant, observer = ledger.make_tenant(), connect(autocommit=True)
    [run] = ledger.submit(tenant)
    gate, replica = connect(), ledger.make_replica()
    gate.execute("SELECT FROM admission_counter WHERE key = %s FOR NO KEY UPDATE", (str(tenant.pk),))
    admission = ledger.Concurrent(ledger.admit_all, replica_driver(replica))
    ledger.until_waiting(observer, admission)
    quota = ledger.Concurrent(set_quota, tenant, 1, actor=SYSTEM)
    ledger.until_waiting(observer, quota)
    gate.commit()
    assert [a.run for a in admission.result()] == [run]
    assert quota.result().in_flight == 1
    assert ledger.permits(tenant) == 1
    ledger.assert_conserved()


@pytest.mark.rule("A14", "A13")
def test_a_first_quota_under_way_holds_off_its_own_tenants_admission_and_nobody_elses(connect: Any) -> None:
    tenant, other, operator, driver = ledger.make_tenant(), ledger.make_tenant(), connect(), ledger.make_driver()
    [run], [others] = ledger.submit(tenant), ledger.submit(other)
    operator.execute("SELECT FROM admission_tenant WHERE id = %s FOR UPDATE", (tenant.pk,))
    assert [a.run for a in ledger.admit_all(driver)] == [others]
    ledger.holds_for(3, lambda: ledger.admit_all(driver) == [])
    operator.rollback()
    assert [a.run for a in ledger.admit_all(driver)] == [run]


@pytest.mark.rule("A15")
def test_a_standing_quota_changes_while_an_admission_is_under_way(connect: Any) -> None:
    tenant, admission = ledger.make_tenant(1), connect()
    admission.execute("SELECT FROM admission_tenant WHERE id = %s FOR KEY SHARE", (tenant.pk,))
    assert set_quota(tenant, 2, actor=SYSTEM).after == 2


@pytest.mark.rule("A14", "A5")
def test_removing_a_quota_waits_for_a_result_under_way_and_leaves_no_weight(connect: Any) -> None:
    m = Meeting(connect)
    removed, verdict = m.in_order(lambda: remove_quota(m.tenant, actor=SYSTEM), m.settle)
    assert (removed.after, verdict) == (None, "ok")
    m.check("succeeded")


@pytest.mark.rule("A26", "A4")
def test_an_admission_that_waits_behind_a_pause_admits_nothing(connect: Any) -> None:
    tenant, observer, operator = ledger.make_tenant(2), connect(autocommit=True), connect()
    [run] = ledger.submit(tenant)
    operator.execute("UPDATE admission_counter SET paused = true WHERE key = %s", (str(tenant.pk),))
    admission = ledger.Concurrent(ledger.admit_all, ledger.make_driver())
    ledger.until_waiting(observer, admission)
    operator.commit()
    assert admission.result() == []
    assert ledger.state(run) == "queued"
    pause_tenant(tenant, actor=SYSTEM, reason="as above")


@pytest.mark.rule("A4", "R8")
def test_a_declaration_of_death_waits_for_an_admission_under_way_and_sees_its_runs(connect: Any) -> None:
    tenant, observer, gate, replica = ledger.make_tenant(), connect(autocommit=True), connect(), ledger.make_replica()
    [run] = ledger.submit(tenant)
    gate.execute("SELECT FROM admission_counter WHERE key = %s FOR NO KEY UPDATE", (str(tenant.pk),))
    admission = ledger.Concurrent(ledger.admit_all, replica_driver(replica))
    ledger.until_waiting(observer, admission)

    def declare() -> list[int]:
        with connections["default"].cursor() as cursor:
            cursor.execute("SELECT id FROM recovery_replica WHERE id = %s FOR UPDATE", (replica.pk,))
            Replica.objects.filter(pk=replica.pk).update(declared_dead_at=replica.beat_at)
            return list(Run.objects.filter(driver_id=replica.pk).values_list("id", flat=True))

    death = ledger.Concurrent(declare)
    ledger.until_waiting(observer, death)
    gate.commit()
    admission.result()
    assert death.result() == [run]


@pytest.mark.rule("A26", "A9")
def test_deleting_a_tenant_waits_for_a_submit_under_way_and_is_refused(connect: Any) -> None:
    tenant, submitting, observer = ledger.make_tenant(1), connect(), connect(autocommit=True)
    submitting.execute("SELECT FROM admission_tenant WHERE id = %s FOR KEY SHARE", (tenant.pk,))
    submitting.execute(
        'INSERT INTO admission_run (tenant_id, spec, rank_at) VALUES (%s, \'{"command": ["x"]}\', now())', (tenant.pk,)
    )
    deletion = ledger.Concurrent(delete_tenant, tenant, actor=SYSTEM, reason="")
    ledger.until_waiting(observer, deletion)
    submitting.commit()
    with pytest.raises(Conflict):
        deletion.result()
    assert Tenant.objects.filter(pk=tenant.pk).exists()


@pytest.mark.rule("A26", "A9")
def test_a_submit_that_waits_for_a_deletion_finds_no_tenant(connect: Any) -> None:
    tenant, deleting, observer = ledger.make_tenant(1), connect(), connect(autocommit=True)
    deleting.execute("DELETE FROM admission_counter WHERE tenant_id = %s", (tenant.pk,))
    deleting.execute("DELETE FROM admission_tenant WHERE id = %s", (tenant.pk,))
    late = ledger.Concurrent(ledger.submit, tenant)
    ledger.until_waiting(observer, late)
    deleting.commit()
    with pytest.raises(NotFound):
        late.result()
    assert not Run.objects.filter(tenant_id=tenant.pk).exists()


@pytest.mark.rule("A2", "G6")
def test_a_submit_under_way_keeps_its_tenant_in_the_order(connect: Any) -> None:
    """The run is inserted and not yet committed: whoever clears the flag now must not strand it."""
    tenant, submitting = ledger.make_tenant(), connect()
    Counter.objects.filter(tenant=tenant).update(backlog=True)
    submitting.execute(
        'INSERT INTO admission_run (tenant_id, spec, rank_at) VALUES (%s, \'{"command": ["x"]}\', now())', (tenant.pk,)
    )
    submitting.execute("SELECT FROM admission_counter WHERE tenant_id = %s FOR KEY SHARE", (tenant.pk,))
    assert clear_backlogs([ledger.counter(tenant).pk]) == 0
    submitting.commit()
    assert len(ledger.admit_all(ledger.make_driver())) == 1


@pytest.mark.rule("A2", "G6")
def test_a_submit_that_waits_for_a_clearing_marks_its_tenant_again(connect: Any) -> None:
    tenant, clearing, observer = ledger.make_tenant(), connect(), connect(autocommit=True)
    Counter.objects.filter(tenant=tenant).update(backlog=True)
    given = {"counters": [ledger.counter(tenant).pk]}
    clearing.execute(admitting.LOCK_BACKLOGS.encode(), given)
    late = ledger.Concurrent(ledger.submit, tenant)
    ledger.until_waiting(observer, late)
    clearing.execute(admitting.CLEAR_BACKLOGS.encode(), given)
    clearing.commit()
    [run] = late.result()
    assert ledger.counter(tenant).backlog is True
    assert [a.run for a in ledger.admit_all(ledger.make_driver())] == [run]


@pytest.mark.rule("A2", "A27")
def test_a_submit_to_a_busy_tenant_does_not_wait_for_its_admission(connect: Any) -> None:
    tenant, admission = ledger.make_tenant(5), connect()
    ledger.submit(tenant)
    admission.execute("SELECT FROM admission_tenant WHERE id = %s FOR KEY SHARE", (tenant.pk,))
    admission.execute("UPDATE admission_counter SET in_flight = 1 WHERE tenant_id = %s", (tenant.pk,))
    assert len(ledger.submit(tenant)) == 1


@pytest.mark.rule("A10", "A9")
def test_a_run_cancelled_while_it_was_being_picked_is_not_admitted(connect: Any) -> None:
    tenant, cancelling, driver = ledger.make_tenant(1), connect(), ledger.make_driver()
    [run] = ledger.submit(tenant)
    cancelling.execute("UPDATE admission_run SET state = 'cancelled' WHERE id = %s", (run,))
    assert ledger.admit_all(driver) == []
    cancelling.commit()
    ledger.holds_for(3, lambda: ledger.admit_all(driver) == [])
    assert ledger.in_flight(tenant) == 0


@pytest.mark.rule("A12")
def test_runs_with_two_limits_given_back_and_settled_at_once_never_deadlock(make_tenant: Any) -> None:
    """Counters are locked in one order everywhere; the tenant's comes last also when it only learns of a backlog."""
    tenant, driver = make_tenant(100), ledger.make_driver()
    ledger.submit(tenant, 40, harness="browser", retry={"backoff_seconds": 0})
    for _ in range(10):
        held = ledger.start(driver, ledger.admit_all(driver, 40))
        clear_backlogs([ledger.counter(tenant).pk])
        calls = [ledger.Concurrent(ledger.give_back, driver, held[n::4], drained=True) for n in range(4)]
        for call in calls:
            call.result()
        ledger.assert_conserved()
