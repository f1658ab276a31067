"""A runner's claim: one engine, and an answer that can be asked for again."""

from __future__ import annotations

from typing import Any

import pytest

from admission.engine import Envelope
from admission.models import Attempt
from admission.services.judging import profile_of, suitable_runs
from controlplane.core.audit import SYSTEM
from runners import sql
from runners.models import ClaimRequest, Runner
from runners.services.claims import claim_runs
from runners.services.fleet import drain_runner, find_runner
from runners.services.polls import Asked, Question, look
from tests import ledger
from tests.api.conftest import Caller
from tests.runners.conftest import RunnerCaller, make_runner, named

pytestmark = pytest.mark.django_db


def runs_of(assignments: list[dict[str, Any]]) -> list[int]:
    return sorted(a["run"] for a in assignments)


@pytest.mark.rule("Q3")
def test_a_claim_admits_up_to_the_free_capacity(runner: RunnerCaller, tenant: Caller) -> None:
    made = ledger.submit(tenant.tenant, 5)
    assert runs_of(runner.claimed("a", slots=3)) == made[:3]
    assert runs_of(runner.claimed("b", slots=3)) == made[3:]
    assert runner.claim("c").status_code == 204
    assert {ledger.run(run).driver_kind for run in made} == {"runner"}
    assert all(ledger.run(run).lease_until is not None for run in made)


@pytest.mark.rule("Q3")
def test_the_server_knows_the_runners_slots_too(tenant: Caller) -> None:
    small = make_runner(slots=2)
    ledger.submit(tenant.tenant, 5)
    assert len(small.claimed(slots=100)) == 2


@pytest.mark.rule("Q3")
def test_labels_and_executors_decide_by_containment(tenant: Caller) -> None:
    plain = make_runner()
    able = make_runner(labels={"gpu": "a100", "zone": "b"}, executors=("docker", "process"))
    wanted = ledger.submit(tenant.tenant, labels={"gpu": "a100"})
    process = ledger.submit(tenant.tenant, backend="process")
    free = ledger.submit(tenant.tenant)
    assert runs_of(plain.claimed()) == free
    assert runs_of(able.claimed()) == wanted + process


@pytest.mark.rule("Q2")
def test_a_tenants_runner_serves_that_tenant_only(tenant: Caller, stranger: Caller) -> None:
    own = make_runner(tenant=tenant.tenant)
    ledger.submit(stranger.tenant, 2)
    mine = ledger.submit(tenant.tenant)
    assert runs_of(own.claimed()) == mine
    assert own.claim("again").status_code == 204


@pytest.mark.rule("Q3")
def test_memory_and_processors_bound_the_claim(runner: RunnerCaller, tenant: Caller) -> None:
    ledger.submit(tenant.tenant, 4, resources={"memory_mib": 300, "cpu": 1})
    assert len(runner.claim("a", memory_mib=700).json()["assignments"]) == 2
    assert len(runner.claim("b", cpu=1.5).json()["assignments"]) == 1


@pytest.mark.rule("Q4")
def test_the_same_request_gets_the_same_answer(runner: RunnerCaller, tenant: Caller) -> None:
    ledger.submit(tenant.tenant, 5)
    first = runner.claim("same", slots=2).json()
    assert runner.claim("same", slots=2).json() == first
    assert runner.claim("same", slots=5).json() == first
    assert Attempt.objects.count() == 2


@pytest.mark.rule("Q4")
def test_a_repeat_leaves_out_what_has_moved_on(runner: RunnerCaller, tenant: Caller) -> None:
    ledger.submit(tenant.tenant, 2)
    first, second = runner.claimed("same")
    runner.post("/runner/results", {"results": [named(first, ending="returned", reason="no image")]})
    again = runner.claim("same").json()["assignments"]
    assert runs_of(again) == [second["run"]]
    # It went back to the queue and comes with the next request, under a new epoch.
    assert runner.claimed("next")[0]["epoch"] > first["epoch"]


@pytest.mark.rule("Q4")
def test_two_runners_may_use_the_same_request_id(runner: RunnerCaller, tenant: Caller) -> None:
    ledger.submit(tenant.tenant, 2)
    other = make_runner()
    assert runs_of(runner.claimed("same", slots=1)) != runs_of(other.claimed("same", slots=1))


@pytest.mark.rule("Q4")
def test_a_claim_that_found_nothing_is_not_remembered(runner: RunnerCaller, tenant: Caller) -> None:
    assert runner.claim("same").status_code == 204
    made = ledger.submit(tenant.tenant, labels={"gpu": "yes"})
    assert runner.claim("same").status_code == 204  # work there is, but none for this one
    assert not ClaimRequest.objects.exists()
    free = ledger.submit(tenant.tenant)
    assert runs_of(runner.claimed("same")) == free
    assert ledger.state(made[0]) == "queued"


@pytest.mark.rule("Q4")
@pytest.mark.rule("Q1")
@pytest.mark.django_db(transaction=True)
def test_the_same_request_on_two_connections_at_once_is_one_claim(connect: Any) -> None:
    made = ledger.make_tenant(quota=10)
    ledger.submit(made, 10)
    runner = make_runner()
    driver = runner.driver
    # Somebody holds the row, so both calls stand before its lock, one of them with the reserved request.
    gate = connect()
    gate.execute("SELECT id FROM runners_runner WHERE id = %s FOR UPDATE", (runner.runner,))
    calls = [ledger.Concurrent(claim_runs, driver, "same", Envelope(3)) for _ in range(2)]
    for call in calls:
        ledger.until_waiting(gate, call)
    gate.rollback()
    first, second = (call.result() for call in calls)
    assert sorted(c.run for c in first) == sorted(c.run for c in second)
    assert len(first) == 3
    assert ledger.in_flight(made) == 3
    assert Attempt.objects.count() == 3
    ledger.assert_conserved()


@pytest.mark.rule("Q4")
@pytest.mark.django_db(transaction=True)
def test_a_claim_that_is_undone_leaves_the_request_free(connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ledger.make_tenant(quota=10)
    ledger.submit(made, 2)
    driver = make_runner().driver

    with monkeypatch.context() as patch:
        patch.setattr(sql, "CLAIM_RUNS", sql.CLAIM_RUNS.replace("'epoch', epoch", "'epoch', 1 / (epoch - epoch)"))
        assert claim_runs(driver, "same", Envelope(2)) is None
    assert not ClaimRequest.objects.exists()
    assert ledger.in_flight(made) == 0
    found = claim_runs(driver, "same", Envelope(2))
    assert found is not None
    assert len(found) == 2
    ledger.assert_conserved()


@pytest.mark.rule("Q11")
@pytest.mark.parametrize(("verb", "mode"), [("pause", "paused"), ("drain", "draining")])
def test_nothing_is_offered_after_the_answer(
    runner: RunnerCaller, tenant: Caller, operator: Caller, verb: str, mode: str
) -> None:
    ledger.submit(tenant.tenant, 2)
    kept = runner.claimed("before", slots=1)
    assert operator.post(f"/runners/{runner.runner}/{verb}", {"reason": "disk"}).status_code == 200
    refused = runner.claim("after")
    assert (refused.status_code, refused["Runner-Mode"]) == (204, mode)
    # What it was given before can still be asked for again, started and reported.
    assert runs_of(runner.claimed("before")) == runs_of(kept)
    assert runner.job(kept[0], "start").json()["verdict"] == "ok"
    assert operator.post(f"/runners/{runner.runner}/resume", {"reason": "fixed"}).status_code == 200
    assert len(runner.claimed("later")) == 1


@pytest.mark.rule("Q11")
@pytest.mark.django_db(transaction=True)
def test_a_drain_waits_for_the_claim_under_way(connect: Any) -> None:
    runner = make_runner()
    claiming = connect()
    claiming.execute(sql.RESERVE_CLAIM, {"runner": runner.runner, "request_id": "r", "token": None})
    drain = ledger.Concurrent(drain_runner, runner.runner, actor=SYSTEM, reason="x")
    ledger.until_waiting(connect(autocommit=True), drain)
    claiming.commit()
    assert drain.result() is True
    assert Runner.objects.get().draining_at is not None


@pytest.mark.rule("Q11")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("column", ["draining_at", "paused_at", "revoked_at"])
def test_a_claim_waits_for_the_drain_under_way_and_gets_nothing(connect: Any, column: str) -> None:
    run = ledger.submit(ledger.make_tenant())[0]
    runner = make_runner()
    driver = runner.driver
    draining = connect()
    draining.execute(sql.LOCK_RUNNER_ALONE, {"runner": runner.runner})
    claim = ledger.Concurrent(claim_runs, driver, "r", Envelope(1))
    ledger.until_waiting(connect(autocommit=True), claim)
    draining.execute(f"UPDATE runners_runner SET {column} = now() WHERE id = %s", (runner.runner,))  # noqa: S608
    draining.commit()
    assert claim.result() is None
    assert ledger.state(run) == "queued"


@pytest.mark.rule("Q2")
def test_revoking_ends_the_token_and_takes_the_runs(tenant: Caller, operator: Caller) -> None:
    runner = make_runner()
    run = ledger.submit(tenant.tenant)[0]
    given = runner.claimed()[0]
    runner.job(given, "start")
    assert operator.post(f"/runners/{runner.runner}/revoke", {"reason": "stolen"}).status_code == 200
    assert runner.get("/runner").status_code == 401
    assert runner.job(given, "result", ending="succeeded", exit_code=0).status_code == 401
    assert ledger.state(run) == "queued"
    assert ledger.run(run).epoch > given["epoch"]
    assert operator.post(f"/runners/{runner.runner}/pause", {"reason": "x"}).status_code == 409
    ledger.assert_conserved()


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"request_id": "r"},
        {"request_id": "", "slots": 1},
        {"request_id": "a b", "slots": 1},
        {"request_id": "x" * 101, "slots": 1},
        {"request_id": "r", "slots": -1},
        {"request_id": "r", "slots": 1.5},
        {"request_id": "r", "slots": 10**30},
        {"request_id": "r", "slots": 1, "memory_mib": 2**31},
        {"request_id": "r", "slots": 1, "cpu": -1},
        {"request_id": "r", "slots": 1, "more": 1},
    ],
)
def test_wrong_claims_are_refused(runner: RunnerCaller, body: Any) -> None:
    assert runner.post("/runner/claims", body).status_code == 400


def test_an_idle_poll_writes_nothing(runner: RunnerCaller, django_assert_num_queries: Any) -> None:
    runner.claim("warm")
    with django_assert_num_queries(3) as seen:  # who calls, the stored answer, whether anybody has work
        assert runner.claim("idle").status_code == 204
    assert all(q["sql"].lstrip().startswith(("SELECT", "WITH")) for q in seen.captured_queries)


def test_a_claim_of_many_costs_no_more_statements_than_one_of_few(
    runner: RunnerCaller, tenant: Caller, django_assert_max_num_queries: Any
) -> None:
    ledger.submit(tenant.tenant, 12)
    runner.claimed("warm", slots=1)
    with django_assert_max_num_queries(10):
        assert len(runner.claimed("many", slots=10)) == 10


@pytest.mark.rule("Q3", "Q4")
@pytest.mark.django_db(transaction=True)
def test_a_claim_that_was_just_seen_to_fit_is_four_statements_in_one_transaction(
    django_assert_num_queries: Any,
) -> None:
    ledger.submit(ledger.make_tenant(quota=10))
    driver = make_runner().driver
    profile = profile_of(driver, None, None)
    found = suitable_runs({profile: 1}, announced=True)
    with django_assert_num_queries(6) as seen:
        claimed = claim_runs(driver, "r", Envelope(1), judged=True, seen=found.only_flow())
    assert claimed is not None
    assert [one.run for one in claimed] == found.runs[profile]
    # The request and its runner; tenants and runs; counters; the admission with the answer.
    first, *_, last = [q["sql"] for q in seen.captured_queries]
    assert (first, last) == ("BEGIN", "COMMIT")


@pytest.mark.rule("A2", "Q3")
@pytest.mark.django_db(transaction=True)
def test_a_claim_whose_runs_another_has_taken_gets_others_all_the_same(make_driver: Any) -> None:
    taken = ledger.submit(ledger.make_tenant(quota=10))
    driver = make_runner().driver
    profile = profile_of(driver, None, None)
    found = suitable_runs({profile: 1}, announced=True)
    assert found.runs == {profile: taken}
    ledger.admit_all(make_driver())
    later = ledger.submit(ledger.make_tenant())
    claimed = claim_runs(driver, "r", Envelope(1), judged=True, seen=found.only_flow())
    assert claimed is not None
    assert [one.run for one in claimed] == later
    ledger.assert_conserved()


@pytest.mark.rule("A18", "Q3")
def test_a_look_that_found_several_runs_leaves_the_fair_order_to_the_claim() -> None:
    tenants = [ledger.make_tenant() for _ in range(2)]
    for tenant in tenants:
        ledger.submit(tenant, 4)
    driver = make_runner(slots=4).driver
    found = suitable_runs({profile_of(driver, None, None): 4})
    assert len(found.flows) == 4
    assert found.only_flow() == []
    claimed = claim_runs(driver, "r", Envelope(4), judged=True, seen=found.only_flow())
    assert claimed is not None
    assert sorted(one.tenant for one in claimed) == sorted(2 * [tenant.slug for tenant in tenants])


@pytest.mark.rule("Q7")
def test_a_look_at_what_was_announced_is_one_statement(django_assert_num_queries: Any) -> None:
    [run] = ledger.submit(ledger.make_tenant())
    caller = make_runner()
    runner = find_runner(caller.token)
    assert runner is not None
    profile = Asked(b"", "r", 1).profile(runner)
    with django_assert_num_queries(1):
        seen = look(Question(wanted={profile: 1}, announced=True))
    assert seen.suitable.runs == {profile: [run]}
