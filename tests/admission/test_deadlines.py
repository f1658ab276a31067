"""Deadlines, retries and cancels of runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from admission.models import Permit, Run
from admission.services.runs import Settlement, cancel_runs, renew_runs, settle_runs
from admission.services.sweeps import sweep_deadlines
from controlplane.core.audit import SYSTEM
from controlplane.core.clock import database_now
from controlplane.core.conf import conf
from tests import ledger

pytestmark = pytest.mark.django_db(transaction=True)

PAST = Now() - timedelta(seconds=1)


def pass_deadline(run: int, **fields: Any) -> None:
    Run.objects.filter(pk=run).update(**(fields or {"start_deadline": PAST}))


@pytest.mark.rule("A28")
def test_a_run_past_its_queue_deadline_is_not_admitted_and_ends_timed_out(
    make_tenant: Any, make_driver: Any, submit: Any
) -> None:
    tenant, driver = make_tenant(1), make_driver()
    [run] = submit(tenant, queue_timeout_seconds=1000)
    pass_deadline(run, queue_deadline=PAST)
    assert ledger.admit_all(driver) == []
    assert sweep_deadlines().queue_deadline == 1
    row = ledger.run(run)
    assert (row.state, row.reason) == ("timed_out", "queue_deadline")
    assert row.finished_at is not None
    ledger.holds_for(3, lambda: ledger.admit_all(driver) == [], sweep_deadlines)
    ledger.assert_conserved()


@pytest.mark.rule("A28")
def test_a_run_that_waits_for_its_time_is_not_admitted_before_and_joins_the_queue_then(
    make_tenant: Any, make_driver: Any, submit: Any
) -> None:
    tenant, driver = make_tenant(1), make_driver()
    [run] = submit(tenant, not_before=(database_now() + timedelta(hours=1)).isoformat())
    ledger.holds_for(3, lambda: ledger.admit_all(driver) == [], sweep_deadlines)
    assert ledger.counter(tenant).backlog is False
    Run.objects.filter(pk=run).update(not_before=PAST)
    assert sweep_deadlines().delayed == 1
    assert [a.run for a in ledger.admit_all(driver)] == [run]


@pytest.mark.rule("Q5", "A28", "A29")
def test_a_hold_not_started_in_time_goes_back_with_its_permit_returned_and_no_attempt_burned(
    make_tenant: Any, make_driver: Any, submit: Any
) -> None:
    tenant, driver = make_tenant(1), make_driver()
    [run] = submit(tenant)
    stale = ledger.holds(ledger.admit_all(driver))[0]
    assert not sweep_deadlines()
    pass_deadline(run)
    assert sweep_deadlines().start_deadline == 1
    row = ledger.run(run)
    assert (row.state, row.tries, row.unstarted, row.reason) == ("queued", 0, 1, "start_deadline")
    assert ledger.in_flight(tenant) == 0
    assert ledger.attempts(run)[0].ending == "returned"
    assert renew_runs(driver, [stale])[stale] == "superseded"
    ledger.assert_conserved()


@pytest.mark.rule("Q5")
def test_five_unstarted_admissions_in_a_row_burn_one_attempt(make_tenant: Any, make_driver: Any, submit: Any) -> None:
    driver = make_driver()
    [run] = submit(make_tenant(1))
    for number in range(1, 3 * conf().unstarted_limit + 1):
        assert len(ledger.admit_all(driver)) == 1
        pass_deadline(run)
        sweep_deadlines()
        assert ledger.run(run).tries == number // conf().unstarted_limit
    assert ledger.state(run) == "interrupted"
    assert ledger.admit_all(driver) == []
    ledger.assert_conserved()


@pytest.mark.rule("Q5")
def test_a_started_admission_ends_the_row_of_unstarted_ones(make_tenant: Any, make_driver: Any, submit: Any) -> None:
    driver = make_driver()
    [run] = submit(make_tenant(1), retry={"backoff_seconds": 0})
    for _ in range(conf().unstarted_limit - 1):
        ledger.admit_all(driver)
        pass_deadline(run)
        sweep_deadlines()
    ledger.give_back(driver, ledger.start(driver, ledger.admit_all(driver)), drained=True)
    assert (ledger.run(run).unstarted, ledger.run(run).tries) == (0, 0)


@pytest.mark.rule("A28")
def test_an_interrupted_run_is_retried_three_times_with_growing_back_off(
    make_tenant: Any, make_driver: Any, submit: Any
) -> None:
    tenant, driver = make_tenant(1), make_driver()
    [run] = submit(tenant, retry={"backoff_seconds": 100})
    for tries, wait in ((1, 100), (2, 200)):
        ledger.give_back(driver, ledger.start(driver, ledger.admit_all(driver)))
        row = ledger.run(run)
        assert (row.state, row.tries, row.delayed) == ("queued", tries, True)
        assert abs((row.not_before - database_now()).total_seconds() - wait) < 20
        assert ledger.admit_all(driver) == []
        Run.objects.filter(pk=run).update(not_before=PAST)
        sweep_deadlines()
    ledger.give_back(driver, ledger.start(driver, ledger.admit_all(driver)))
    assert ledger.state(run) == "interrupted"
    assert [a.ending for a in ledger.attempts(run)] == ["interrupted"] * 3
    ledger.assert_conserved()


@pytest.mark.rule("A28")
def test_a_run_that_asked_to_fail_on_interruption_is_not_retried(
    make_tenant: Any, make_driver: Any, submit: Any
) -> None:
    driver = make_driver()
    [run] = submit(make_tenant(1), retry={"on_interrupt": "fail"})
    ledger.give_back(driver, ledger.holds(ledger.admit_all(driver)))
    assert ledger.state(run) == "queued"  # never started: nothing was interrupted
    ledger.give_back(driver, ledger.start(driver, ledger.admit_all(driver)))
    assert ledger.state(run) == "interrupted"


@pytest.mark.rule("A28")
@pytest.mark.parametrize(("on_failure", "state"), [("fail", "failed"), ("retry", "queued")])
def test_a_run_that_failed_by_itself_is_retried_only_if_asked(
    make_tenant: Any, make_driver: Any, submit: Any, on_failure: str, state: str
) -> None:
    tenant, driver = make_tenant(1), make_driver()
    [run] = submit(tenant, retry={"on_failure": on_failure, "max_attempts": 2, "backoff_seconds": 0})
    hold = ledger.start(driver, ledger.admit_all(driver))[0]
    settle_runs(driver, [Settlement(*hold, "failed", exit_code=3)])
    assert ledger.state(run) == state
    assert ledger.in_flight(tenant) == 0
    ledger.assert_conserved()
    if state == "queued":
        sweep_deadlines()
        hold = ledger.start(driver, ledger.admit_all(driver))[0]
        settle_runs(driver, [Settlement(*hold, "failed", exit_code=3)])
        assert ledger.state(run) == "failed"


@pytest.mark.rule("A28")
def test_a_run_past_its_time_is_asked_to_stop_and_ends_timed_out_when_it_did(
    make_tenant: Any, make_driver: Any, submit: Any
) -> None:
    tenant, driver = make_tenant(1), make_driver()
    [run] = submit(tenant, timeout_seconds=10)
    hold = ledger.start(driver, ledger.admit_all(driver))[0]
    assert not sweep_deadlines()
    pass_deadline(run, run_deadline=PAST)
    assert sweep_deadlines().run_deadline == 1
    assert not sweep_deadlines()
    assert ledger.state(run) == "running"
    assert ledger.in_flight(tenant) == 1
    assert renew_runs(driver, [hold])[hold] == "cancel"
    settle_runs(driver, [Settlement(*hold, "cancelled")])
    assert (ledger.state(run), ledger.run(run).reason) == ("timed_out", "run_deadline")
    ledger.assert_conserved()


@pytest.mark.rule("A28", "G6")
def test_a_run_deadline_is_judged_again_when_it_is_acted_on(make_tenant: Any, make_driver: Any, submit: Any) -> None:
    """The attempt was taken away between the sweep's look and its act; no successor is late."""
    tenant, driver = make_tenant(1), make_driver()
    [run] = submit(tenant, retry={"backoff_seconds": 0})
    ledger.give_back(driver, ledger.start(driver, ledger.admit_all(driver)))
    assert cancel_runs([run], actor=SYSTEM, cause="run_deadline") == {}
    ledger.start(driver, ledger.admit_all(driver))
    assert cancel_runs([run], actor=SYSTEM, cause="run_deadline") == {}
    assert ledger.run(run).cancel_requested_at is None


@pytest.mark.rule("A28")
def test_a_cancel_waits_for_the_confirmed_stop_and_keeps_the_permit_until_then(
    make_tenant: Any, make_driver: Any, submit: Any
) -> None:
    tenant, driver = make_tenant(1), make_driver()
    [run] = submit(tenant)
    submit(tenant)
    hold = ledger.start(driver, ledger.admit_all(driver))[0]
    cancel_runs([run], actor=SYSTEM, reason="enough")
    ledger.holds_for(5, lambda: ledger.state(run) == "running", lambda: ledger.admit_all(driver))
    assert ledger.in_flight(tenant) == 1
    settle_runs(driver, [Settlement(*hold, "cancelled")])
    assert ledger.state(run) == "cancelled"
    assert len(ledger.admit_all(driver)) == 1
    ledger.assert_conserved()


@pytest.mark.rule("A28")
def test_nobody_ends_a_run_as_cancelled_that_nobody_cancelled(make_tenant: Any, make_driver: Any, submit: Any) -> None:
    driver = make_driver()
    [run] = submit(make_tenant(1))
    hold = ledger.start(driver, ledger.admit_all(driver))[0]
    assert settle_runs(driver, [Settlement(*hold, "cancelled")])[0][hold] == "superseded"
    assert ledger.state(run) == "running"


@pytest.mark.rule("A9", "A28")
def test_cancelling_a_queued_run_ends_it_at_once_and_leaves_no_permit(
    make_tenant: Any, make_driver: Any, submit: Any
) -> None:
    tenant, other, driver = make_tenant(1), make_tenant(), make_driver()
    [run] = submit(tenant)
    assert cancel_runs([run], actor=SYSTEM, tenant_id=other.pk) == {}
    assert cancel_runs([run], actor=SYSTEM) == {run: "cancelled"}
    assert cancel_runs([run], actor=SYSTEM) == {}
    assert ledger.admit_all(driver) == []
    ledger.assert_conserved()


@pytest.mark.rule("Q6")
def test_a_lapsed_runner_lease_is_taken_and_a_renewed_one_is_not(
    make_tenant: Any, make_driver: Any, submit: Any
) -> None:
    tenant, runner = make_tenant(2), make_driver("runner")
    kept, lost = submit(tenant, 2, retry={"backoff_seconds": 0})
    held = ledger.start(runner, ledger.admit_all(runner))
    Run.objects.filter(pk__in=(kept, lost)).update(lease_until=PAST)
    assert renew_runs(runner, [h for h in held if h[0] == kept]) == {(kept, 1): "ok"}
    assert sweep_deadlines().runner_lease == 1
    assert (ledger.state(kept), ledger.state(lost)) == ("running", "queued")
    assert renew_runs(runner, held)[(lost, 1)] == "superseded"
    ledger.assert_conserved()


@pytest.mark.rule("R3")
def test_a_lapsed_lease_says_nothing_about_runs_of_replicas(make_tenant: Any, make_driver: Any, submit: Any) -> None:
    driver = make_driver()
    [run] = submit(make_tenant(2))
    ledger.start(driver, ledger.admit_all(driver))
    Run.objects.filter(pk=run).update(lease_until=PAST)
    ledger.holds_for(3, lambda: ledger.state(run) == "running", sweep_deadlines)


@pytest.mark.rule("A11", "R8")
def test_start_and_renewal_renew_the_permit_of_exactly_the_listed_holds(
    make_tenant: Any, make_driver: Any, submit: Any
) -> None:
    tenant, driver = make_tenant(2), make_driver()
    first, second = submit(tenant, 2)
    holds = ledger.holds(ledger.admit_all(driver))
    Permit.objects.update(renewed_at=PAST)
    before = dict(Permit.objects.values_list("run_id", "renewed_at"))
    renew_runs(driver, [h for h in holds if h[0] == first])
    after = dict(Permit.objects.values_list("run_id", "renewed_at"))
    assert after[first] > before[first]
    assert after[second] == before[second]
