"""Start, heartbeat, result: proved by (run, runner, epoch), each in one statement."""

from __future__ import annotations

from typing import Any

import pytest

from admission.models import Run
from admission.services.runs import RUNNER_LEASE, cancel_runs, take_away
from admission.services.sweeps import pass_runner_leases
from controlplane.core.audit import SYSTEM
from controlplane.core.models import Hold
from tests import ledger
from tests.api.conftest import Caller
from tests.runners.conftest import RunnerCaller, make_runner, named

pytestmark = pytest.mark.django_db


@pytest.fixture
def given(runner: RunnerCaller, tenant: Caller) -> dict[str, Any]:
    """One run, admitted to the runner."""
    ledger.submit(tenant.tenant)
    return runner.claimed()[0]


def lose(given: dict[str, Any], state: str = "queued") -> None:
    """The lease lapses, and the sweep takes the run."""
    Run.objects.filter(pk=given["run"]).update(lease_until="2000-01-01T00:00:00Z")
    assert [ended.state for ended in take_away([(given["run"], given["epoch"])], RUNNER_LEASE)] == [state]


def test_one_run_from_start_to_end(runner: RunnerCaller, given: dict[str, Any]) -> None:
    assert runner.job(given, "start").json()["verdict"] == "ok"
    assert runner.job(given, "heartbeat").json()["verdict"] == "ok"
    done = runner.job(given, "result", ending="succeeded", exit_code=0)
    assert (done.status_code, done.json()["verdict"]) == (200, "ok")
    run = ledger.run(given["run"])
    assert (run.state, run.exit_code) == ("succeeded", 0)


def test_many_at_once(runner: RunnerCaller, tenant: Caller) -> None:
    ledger.submit(tenant.tenant, 4)
    held = [named(a) for a in runner.claimed()]
    for path in ("/runner/starts", "/runner/heartbeats"):
        answer = runner.post(path, {"runs": held}).json()
        assert answer["verdicts"] == [{**hold, "verdict": "ok"} for hold in held]
        assert answer["heartbeat_seconds"] > 0
    results = [{**hold, "ending": "failed", "exit_code": 1} for hold in held]
    ended = runner.post("/runner/results", {"results": results}).json()["verdicts"]
    assert [v["verdict"] for v in ended] == ["ok"] * 4
    assert set(Run.objects.values_list("state", flat=True)) == {"failed"}


@pytest.mark.rule("Q9")
def test_a_repeat_of_the_same_result_is_ok_and_another_is_409(runner: RunnerCaller, given: dict[str, Any]) -> None:
    runner.job(given, "start")
    for _ in range(2):
        assert runner.job(given, "result", ending="succeeded", exit_code=0).status_code == 200
    other = runner.job(given, "result", ending="failed", exit_code=1)
    assert (other.status_code, other.json()["code"]) == (409, "superseded")
    assert ledger.state(given["run"]) == "succeeded"


@pytest.mark.rule("Q6")
@pytest.mark.parametrize("verb", ["start", "heartbeat", "result"])
def test_a_lapsed_hold_proves_nothing(runner: RunnerCaller, given: dict[str, Any], verb: str) -> None:
    lose(given)
    fields = {"ending": "succeeded"} if verb == "result" else {}
    answer = runner.job(given, verb, **fields)
    assert (answer.status_code, answer.json()["code"]) == (409, "superseded")
    assert ledger.state(given["run"]) == "queued"


@pytest.mark.rule("Q6")
def test_an_old_epoch_of_the_same_runner_proves_nothing(runner: RunnerCaller, given: dict[str, Any]) -> None:
    lose(given)
    again = runner.claimed("again")[0]
    assert again["run"] == given["run"]
    answer = runner.post("/runner/starts", {"runs": [named(given), named(again)]}).json()["verdicts"]
    assert {v["epoch"]: v["verdict"] for v in answer} == {given["epoch"]: "superseded", again["epoch"]: "ok"}


@pytest.mark.rule("Q6")
def test_another_runner_proves_nothing(runner: RunnerCaller, given: dict[str, Any]) -> None:
    thief = make_runner()
    for path in ("/runner/starts", "/runner/heartbeats"):
        verdicts = thief.post(path, {"runs": [named(given)]}).json()["verdicts"]
        assert verdicts == [{**named(given), "verdict": "superseded"}]
    result = [named(given, ending="succeeded", exit_code=0)]
    assert thief.post("/runner/results", {"results": result}).json()["verdicts"][0]["verdict"] == "superseded"
    assert ledger.state(given["run"]) == "admitted"


@pytest.mark.rule("Q2")
@pytest.mark.parametrize("wrong", ["", "whj_nonsense", "ü", "x" * 5000])
def test_the_paths_of_one_run_need_its_job_token(runner: RunnerCaller, given: dict[str, Any], wrong: str) -> None:
    answer = runner.job({**given, "job_token": wrong}, "start")
    assert (answer.status_code, answer.json()["code"]) == (401, "bad_job_token")
    assert ledger.state(given["run"]) == "admitted"


@pytest.mark.rule("Q2")
def test_a_job_token_ends_with_its_epoch_and_is_its_runners(runner: RunnerCaller, given: dict[str, Any]) -> None:
    other = {**given, "epoch": given["epoch"] + 1}
    assert runner.job(other, "start").status_code == 401
    assert make_runner().job(given, "start").status_code == 401


@pytest.mark.rule("Q9")
def test_a_cancel_comes_with_every_answer(runner: RunnerCaller, given: dict[str, Any]) -> None:
    runner.job(given, "start")
    assert runner.get("/runner").json()["cancel"] == []
    cancel_runs([given["run"]], actor=SYSTEM)
    expected = [named(given)]
    assert runner.get("/runner").json()["cancel"] == expected
    assert runner.claim("more").json() | {"assignments": []} == runner.claim("more").json()
    assert runner.claim("more").json()["cancel"] == expected
    assert runner.post("/runner/heartbeats", {"runs": []}).json()["cancel"] == expected
    assert runner.log(given, 0, b"x").json()["verdict"] == "cancel"
    assert runner.job(given, "heartbeat").json()["verdict"] == "cancel"
    assert ledger.run(given["run"]).cancel_seen_at is not None
    assert runner.job(given, "result", ending="cancelled").status_code == 200
    assert ledger.state(given["run"]) == "cancelled"
    assert runner.get("/runner").json()["cancel"] == []


def test_a_run_cancelled_before_its_start_is_not_started(runner: RunnerCaller, given: dict[str, Any]) -> None:
    cancel_runs([given["run"]], actor=SYSTEM)
    assert runner.job(given, "start").json()["verdict"] == "cancel"
    assert ledger.state(given["run"]) == "admitted"


@pytest.mark.rule("R14")
@pytest.mark.parametrize(("reason", "tries"), [("drained", 0), ("shutdown", 0), ("lost", 1)])
def test_returned_work_goes_back_and_a_drain_burns_no_attempt(
    runner: RunnerCaller, given: dict[str, Any], reason: str, tries: int
) -> None:
    runner.job(given, "start")
    answer = runner.post("/runner/results", {"results": [named(given, ending="returned", reason=reason)]})
    assert answer.json()["verdicts"][0]["verdict"] == "ok"
    run = ledger.run(given["run"])
    assert (run.state, run.tries) == ("queued", tries)
    ledger.assert_conserved()


@pytest.mark.rule("A10")
def test_a_restarted_agent_asks_what_it_holds(runner: RunnerCaller, tenant: Caller) -> None:
    ledger.submit(tenant.tenant, 2)
    first, second = runner.claimed()
    runner.job(first, "start")
    held = runner.get("/runner/holds").json()["assignments"]
    assert [(a["run"], a["state"]) for a in held] == [(first["run"], "running"), (second["run"], "admitted")]
    assert held[0]["job_token"] == first["job_token"]
    assert make_runner().get("/runner/holds").json()["assignments"] == []


@pytest.mark.rule("Q1")
def test_a_tenants_token_opens_no_runners_path_and_the_reverse(runner: RunnerCaller, tenant: Caller) -> None:
    assert tenant.get("/runner").status_code == 401
    assert tenant.post("/runner/claims", {"request_id": "r", "slots": 1}).status_code == 401
    assert runner.get("/runs").status_code == 401
    assert runner.get("/permits").status_code == 401


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/runner/starts", {}),
        ("/runner/starts", {"runs": [{"run": 1}]}),
        ("/runner/starts", {"runs": [{"run": "1", "epoch": 1}]}),
        ("/runner/starts", {"runs": [{"run": 10**30, "epoch": 1}]}),
        ("/runner/starts", {"runs": [{"run": -1, "epoch": 1}]}),
        ("/runner/heartbeats", {"runs": [{"run": 1, "epoch": 1}] * 1001}),
        ("/runner/results", {"results": [{"run": 1, "epoch": 1, "ending": "interrupted"}]}),
        ("/runner/results", {"results": [{"run": 1, "epoch": 1, "ending": "failed", "exit_code": 2**31}]}),
        ("/runner/results", {"results": [{"run": 1, "epoch": 1, "ending": "failed", "reason": "x" * 61}]}),
        ("/runner/results", {"results": [{"run": 1, "epoch": 1, "ending": "failed"}] * 2}),
        ("/runner/runs/1/start", {}),
        ("/runner/runs/1/result", {"epoch": 1}),
    ],
)
def test_wrong_messages_are_refused(runner: RunnerCaller, path: str, body: Any) -> None:
    assert runner.post(path, body).status_code == 400


@pytest.mark.parametrize("count", [1, 8])
def test_the_batch_forms_cost_the_same_whatever_they_carry(
    runner: RunnerCaller, tenant: Caller, django_assert_num_queries: Any, count: int
) -> None:
    ledger.submit(tenant.tenant, count)
    held = [named(a) for a in runner.claimed()]
    for path in ("/runner/starts", "/runner/heartbeats"):
        with django_assert_num_queries(2):  # who calls, and the one statement
            runner.post(path, {"runs": held})
    results = [{**hold, "ending": "succeeded", "exit_code": 0} for hold in held]
    with django_assert_num_queries(2):
        runner.post("/runner/results", {"results": results})


# -- a cancel and a runner that is silent -----------------------------------------------------------------------------


def silent_past_its_lease(given: dict[str, Any]) -> None:
    Run.objects.filter(pk=given["run"]).update(lease_until="2000-01-01T00:00:00Z")


@pytest.mark.rule("Q9")
def test_a_cancel_is_ended_by_the_server_when_its_runner_stays_silent_past_its_lease(
    runner: RunnerCaller, given: dict[str, Any]
) -> None:
    runner.job(given, "start")
    cancel_runs([given["run"]], actor=SYSTEM)
    assert pass_runner_leases().counts["runner_lease"] == 0
    assert ledger.state(given["run"]) == "running"
    silent_past_its_lease(given)
    ledger.holds_for(3, lambda: pass_runner_leases().counts == {"runner_lease": 0, "held_after_outage": True})
    Hold.objects.update(until="2000-01-01T00:00:00Z")
    assert pass_runner_leases().counts["runner_lease"] == 1
    assert ledger.state(given["run"]) == "cancelled"
    ledger.assert_conserved()


@pytest.mark.rule("Q9")
def test_its_last_holder_may_still_acknowledge_it_and_nobody_else(runner: RunnerCaller, given: dict[str, Any]) -> None:
    runner.job(given, "start")
    cancel_runs([given["run"]], actor=SYSTEM)
    lose(given, "cancelled")
    ended = ledger.run(given["run"])
    assert ended.cancel_confirmed_at is None
    thief = make_runner()
    cancelled = {"results": [named(given, ending="cancelled")]}
    assert thief.post("/runner/results", cancelled).json()["verdicts"][0]["verdict"] == "superseded"
    assert runner.job(given, "result", ending="failed", exit_code=1).status_code == 409
    assert ledger.run(given["run"]).cancel_confirmed_at is None
    for _ in range(2):
        assert runner.job(given, "result", ending="cancelled").status_code == 200
    row = ledger.run(given["run"])
    assert row.cancel_confirmed_at is not None
    assert (row.state, row.finished_at, row.epoch) == ("cancelled", ended.finished_at, ended.epoch)


@pytest.mark.rule("Q9")
def test_a_cancel_that_nobody_asked_for_is_acknowledged_by_nobody(runner: RunnerCaller, given: dict[str, Any]) -> None:
    runner.job(given, "start")
    lose(given)
    assert runner.job(given, "result", ending="cancelled").status_code == 409
    assert ledger.state(given["run"]) == "queued"
