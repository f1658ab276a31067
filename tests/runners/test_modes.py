"""Pause with a note and an end, drain, one run only (rule Q11)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from admission.engine import Envelope
from controlplane.core.audit import SYSTEM
from controlplane.core.models import AuditEntry
from runners.models import Runner
from runners.services.claims import claim_runs
from runners.services.fleet import end_pauses, pause_runner, revoke_runner
from tests import ledger
from tests.api.conftest import Caller
from tests.runners.conftest import RunnerCaller, make_runner, named

pytestmark = [pytest.mark.django_db, pytest.mark.rule("Q11")]


@pytest.fixture
def only(db: None) -> RunnerCaller:
    """A runner of one run."""
    return make_runner(one_job=True)


def test_a_pause_ends_by_itself_and_a_drain_does_not(runner: RunnerCaller, operator: Caller, tenant: Caller) -> None:
    later = (timezone.now() + timedelta(hours=1)).isoformat()
    answer = operator.post(f"/runners/{runner.runner}/pause", {"reason": "new disk", "resume_at": later})
    assert (answer.json()["pause_note"], answer.json()["resume_at"][:16]) == ("new disk", later[:16])
    ledger.submit(tenant.tenant)
    assert end_pauses().counts == {"runner_pause_over": 0}
    ledger.holds_for(3, lambda: runner.claim().status_code == 204)
    operator.post(f"/runners/{runner.runner}/drain", {"reason": "and away"})
    Runner.objects.update(resume_at=timezone.now() - timedelta(seconds=1))
    assert end_pauses().counts == {"runner_pause_over": 1}
    assert runner.get("/runner").json()["mode"] == "draining"
    operator.post(f"/runners/{runner.runner}/resume", {"reason": "back"})
    assert runner.claimed()
    actors = AuditEntry.objects.filter(verb="resume").order_by("pk").values_list("actor", flat=True)
    assert actors[0] == "system"


@pytest.mark.parametrize("end", ["9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00"])
def test_an_end_that_could_not_be_read_again_is_refused(
    runner: RunnerCaller, operator: Caller, tenant: Caller, end: str
) -> None:
    assert tenant.tenant is not None
    paths = (f"/runners/{runner.runner}", f"/tenants/{tenant.tenant.slug}")
    answers = [operator.post(f"{path}/pause", {"reason": "x", "resume_at": end}) for path in paths]
    assert [answer.status_code for answer in answers] == [400, 400]
    assert [operator.get(path).status_code for path in ("/runners", "/tenants")] == [200, 200]


def test_an_end_in_the_past_is_refused(runner: RunnerCaller, operator: Caller) -> None:
    past = (timezone.now() - timedelta(seconds=5)).isoformat()
    assert operator.post(f"/runners/{runner.runner}/pause", {"reason": "x", "resume_at": past}).status_code == 400
    assert runner.get("/runner").json()["mode"] == "active"


def test_a_revoked_one_is_not_resumed_and_not_looked_at_again(runner: RunnerCaller, operator: Caller) -> None:
    pause_runner(runner.runner, actor=SYSTEM, reason="x", resume_at=timezone.now() + timedelta(hours=1))
    revoke_runner(runner.runner, actor=SYSTEM, reason="x")
    Runner.objects.update(resume_at=timezone.now() - timedelta(seconds=1))
    assert end_pauses().counts == {"runner_pause_over": 0}
    assert Runner.objects.get().resume_at is None
    assert operator.post(f"/runners/{runner.runner}/resume", {"reason": "x"}).status_code == 409


def test_one_run_is_all_it_gets_and_then_it_drains(only: RunnerCaller, tenant: Caller) -> None:
    assert only.get("/runner").json() | {"slots": 1, "one_job": True} == only.get("/runner").json()
    ledger.submit(tenant.tenant, 3)
    assert only.claim("nothing", slots=0).status_code == 204
    given = only.claimed("first", slots=5)
    assert len(given) == 1
    assert only.claimed("first", slots=5) == given, "the same request has the same answer"
    assert only.claim("second").status_code == 204
    # While it has its run nothing tells the agent to give back what is not started.
    assert only.get("/runner").json()["mode"] == "active"
    only.job(given[0], "start")
    done = only.job(given[0], "result", ending="succeeded", exit_code=0)
    assert done.status_code == 200
    assert only.get("/runner").json()["mode"] == "draining"
    ledger.holds_for(3, lambda: only.claim("third").status_code == 204)


def test_a_claim_that_found_nothing_is_not_its_run(only: RunnerCaller, tenant: Caller) -> None:
    assert only.claim("early").status_code == 204
    ledger.submit(tenant.tenant)
    assert len(only.claimed("late")) == 1


@pytest.mark.django_db(transaction=True)
def test_two_claims_at_once_of_a_runner_of_one_run_get_one(connect: Any) -> None:
    made = ledger.make_tenant()
    ledger.submit(made, 4)
    only = make_runner(one_job=True)
    driver, gate = only.driver, connect()
    gate.execute("SELECT FROM runners_runner WHERE id = %s FOR UPDATE", (only.runner,))
    calls = [ledger.Concurrent(claim_runs, driver, name, Envelope(1)) for name in ("a", "b")]
    for call in calls:
        ledger.until_waiting(gate, call)
    gate.rollback()
    assert sorted(len(call.result() or []) for call in calls) == [0, 1]


def test_a_machine_drains_itself_and_takes_back_its_own_drain_only(
    runner: RunnerCaller, operator: Caller, tenant: Caller
) -> None:
    ledger.submit(tenant.tenant)
    assert runner.post("/runner/drain", {"reason": "kernel update"}).json() | {"mode": "draining"} == (
        runner.post("/runner/drain").json() | {"changed": True}
    )
    ledger.holds_for(3, lambda: runner.claim().status_code == 204)
    assert runner.delete("/runner/drain").json()["mode"] == "active"
    assert runner.claimed()
    operator.post(f"/runners/{runner.runner}/drain", {"reason": "away"})
    taken_back = runner.delete("/runner/drain").json()
    assert (taken_back["changed"], taken_back["mode"]) == (False, "draining")


def test_one_run_by_its_enrolment_token(operator: Caller, tenant: Caller) -> None:
    issued = operator.post("/enrolment-tokens", {"one_job": True, "reason": "x"}).json()["token"]
    made = Caller().post("/runners/enrol", {"token": issued, "name": "m", "slots": 8}).json()
    row = Runner.objects.get(pk=made["id"])
    assert (row.one_job, row.slots) == (True, 1)


def test_a_drained_answer_is_followed_by_no_offer(runner: RunnerCaller, tenant: Caller, operator: Caller) -> None:
    ledger.submit(tenant.tenant, 2)
    first = runner.claimed(slots=1)[0]
    assert operator.post(f"/runners/{runner.runner}/drain", {"reason": "x"}).status_code == 200
    ledger.holds_for(5, lambda: runner.claim("more").status_code == 204)
    assert runner.post("/runner/starts", {"runs": [named(first)]}).json()["verdicts"][0]["verdict"] == "ok"
