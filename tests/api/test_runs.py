"""Runs over REST: submit, list, look, cancel; batches."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import override_settings

from admission.models import Run
from tests import ledger
from tests.api.conftest import Caller

pytestmark = pytest.mark.django_db

SPEC = {"command": ["true"]}


@pytest.mark.rule("A27")
def test_the_same_key_is_the_same_run(tenant: Caller) -> None:
    first = tenant.post("/runs", SPEC, **{"Idempotency-Key": "k"})
    again = tenant.post("/runs", {"command": ["true"], "priority": 0}, **{"Idempotency-Key": "k"})
    assert (first.status_code, first.json()["outcome"]) == (201, "created")
    assert (again.status_code, again.json()["outcome"]) == (200, "existed")
    assert first.json()["id"] == again.json()["id"]
    assert first["Location"].endswith(f"/api/v1/runs/{first.json()['id']}")


@pytest.mark.rule("A27")
def test_the_same_key_with_another_body_is_422(tenant: Caller) -> None:
    tenant.post("/runs", SPEC, **{"Idempotency-Key": "k"})
    answer = tenant.post("/runs", {"command": ["false"]}, **{"Idempotency-Key": "k"})
    assert answer.status_code == 422
    assert answer.json()["code"] == "idempotency_mismatch"
    assert Run.objects.count() == 1


@pytest.mark.rule("A27")
def test_keys_of_two_tenants_do_not_meet(tenant: Caller, stranger: Caller) -> None:
    mine = tenant.post("/runs", SPEC, **{"Idempotency-Key": "k"}).json()
    theirs = stranger.post("/runs", {"command": ["false"]}, **{"Idempotency-Key": "k"}).json()
    assert theirs["outcome"] == "created"
    assert theirs["id"] != mine["id"]


@pytest.mark.parametrize("key", ["", "x" * 201])
def test_a_wrong_key_is_refused(tenant: Caller, key: str) -> None:
    assert tenant.post("/runs", SPEC, **{"Idempotency-Key": key}).status_code == 400


def test_without_a_key_each_is_a_run(tenant: Caller) -> None:
    assert tenant.post("/runs", SPEC).json()["id"] != tenant.post("/runs", SPEC).json()["id"]


@pytest.mark.rule("A21")
@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "9999-12-31T23:59:59Z"])
def test_a_moment_that_could_not_be_read_again_is_refused_and_every_list_stays_readable(
    tenant: Caller, operator: Caller, moment: str
) -> None:
    answer = tenant.post("/runs", {"command": ["true"], "not_before": moment})
    assert answer.status_code == 400
    assert answer.json()["errors"][0]["field"] == "not_before"
    assert [caller.get("/runs").status_code for caller in (tenant, operator)] == [200, 200]


def test_a_full_queue_is_429_with_the_time_to_wait(tenant: Caller) -> None:
    with override_settings(CONTROLPLANE={"queue_depth_tenant": 1}):
        assert tenant.post("/runs", SPEC).status_code == 201
        answer = tenant.post("/runs", SPEC)
    assert answer.status_code == 429
    assert int(answer["Retry-After"]) > 0
    assert answer.json()["code"] == "tenant_queue_full"


def test_an_operator_submits_for_a_tenant_by_name(operator: Caller, tenant: Caller) -> None:
    assert operator.post("/runs", SPEC).status_code == 400
    assert operator.post("/runs?tenant=other", SPEC).status_code == 404
    run = operator.post(f"/runs?tenant={tenant.tenant.slug}", SPEC).json()["id"]
    assert tenant.get(f"/runs/{run}").status_code == 200


def test_a_run_shows_its_attempts_and_what_happened_when(tenant: Caller, make_driver: Any) -> None:
    run = ledger.submit(tenant.tenant)[0]
    driver = make_driver()
    ledger.succeed(driver, ledger.start(driver, ledger.admit_all(driver)))
    shown = tenant.get(f"/runs/{run}").json()
    assert shown["state"] == "succeeded"
    assert [a["ending"] for a in shown["attempts"]] == ["succeeded"]
    assert [e["event"] for e in shown["timeline"]] == ["submitted", "admitted", "started", "released", "succeeded"]
    assert shown["spec"] == SPEC


def test_cancelling_says_whether_it_ended_here(tenant: Caller, make_driver: Any) -> None:
    queued, running = ledger.submit(tenant.tenant)[0], ledger.submit(tenant.tenant, priority=5)[0]
    driver = make_driver()
    ledger.start(driver, ledger.admit_all(driver, 1))
    ended = tenant.post(f"/runs/{queued}/cancel", {"reason": "no more"})
    assert (ended.status_code, ended.json()["state"]) == (200, "cancelled")
    asked = tenant.post(f"/runs/{running}/cancel")
    assert (asked.status_code, asked.json()["state"]) == (202, "running")
    late = tenant.post(f"/runs/{queued}/cancel")
    assert (late.status_code, late.json()["code"]) == (409, "run_ended")
    assert ledger.run(queued).cancel_reason == "no more"


def test_pages_follow_each_other_without_gap_or_repeat(tenant: Caller) -> None:
    made = ledger.submit(tenant.tenant, 7)
    seen: list[int] = []
    path = "/runs?limit=3"
    while path:
        page = tenant.get(path).json()
        seen += [run["id"] for run in page["results"]]
        path = (page["next"] or "").partition("/api/v1")[2]
    assert seen == made[::-1]


def test_filters(tenant: Caller) -> None:
    one = tenant.post("/runs", {**SPEC, "name": "one"}).json()["id"]
    batch = tenant.post("/batches", {"name": "b", "runs": [{"spec": SPEC}, {"spec": SPEC}]}).json()
    tenant.post(f"/runs/{one}/cancel")

    def ids(query: str) -> list[int]:
        return [run["id"] for run in tenant.get(f"/runs?{query}").json()["results"]]

    inside = [item["id"] for item in batch["items"]][::-1]
    assert ids("name=one") == [one]
    assert ids("state=cancelled") == [one]
    assert ids("state=queued") == inside
    assert ids("state=queued&state=cancelled") == [*inside, one]
    assert ids(f"batch={batch['id']}") == ids("batch_name=b") == inside
    assert ids("kind=session") == []


@pytest.mark.rule("A25")
def test_a_wrong_run_of_a_batch_does_not_hinder_the_others(tenant: Caller) -> None:
    runs: list[Any] = [
        {"spec": SPEC, "idempotency_key": "a"},
        {"spec": {"comand": ["true"]}, "idempotency_key": "b"},
        "nonsense",
        {"spec": {"command": ["false"]}, "idempotency_key": "a"},
        {"spec": SPEC, "idempotency_key": "c", "more": 1},
        {"spec": SPEC},
    ]
    answer = tenant.post("/batches", {"name": "b", "runs": runs})
    assert answer.status_code == 200
    body = answer.json()
    assert [item["outcome"] for item in body["items"]] == [
        "created", "invalid", "invalid", "conflict", "invalid", "created",
    ]  # fmt: skip
    assert (body["created"], body["existed"], body["refused"]) == (2, 0, 4)
    assert {e["field"] for e in body["items"][1]["errors"]} == {"command", "comand"}
    again = tenant.post("/batches", {"name": "b", "runs": runs[:1]}).json()
    assert (again["id"], again["existed"]) == (body["id"], 1)


def test_a_batch_of_only_wrong_runs_makes_nothing(tenant: Caller) -> None:
    body = tenant.post("/batches", {"name": "b", "runs": [{"spec": {}}]}).json()
    assert body["id"] is None
    assert tenant.get("/batches").json()["results"] == []


def test_a_batch_has_its_bounds(tenant: Caller) -> None:
    assert tenant.post("/batches", {"name": "b", "runs": []}).status_code == 400
    assert tenant.post("/batches", {"name": "b", "runs": [{"spec": SPEC}] * 1001}).status_code == 400
    assert tenant.post("/batches", {"name": "x" * 201, "runs": [{"spec": SPEC}]}).status_code == 400


def test_batches_count_their_runs_by_state(tenant: Caller, stranger: Caller) -> None:
    made = tenant.post("/batches", {"name": "b", "runs": [{"spec": SPEC}] * 3}).json()
    tenant.post(f"/runs/{made['items'][0]['id']}/cancel")
    shown = tenant.get(f"/batches/{made['id']}").json()
    assert shown["counts"] == {"queued": 2, "cancelled": 1}
    assert (shown["runs"], shown["counted_all"]) == (3, True)
    assert tenant.get("/batches?name=b").json()["results"] == [shown]
    assert stranger.get(f"/batches/{made['id']}").status_code == 404


@pytest.mark.parametrize(("path", "most"), [("/runs", 2), ("/batches", 3), ("/permits", 2), ("/tenants", 2)])
def test_a_list_costs_the_same_whatever_is_on_it(
    operator: Caller, django_assert_max_num_queries: Any, path: str, most: int, make_driver: Any
) -> None:
    for number in range(3):
        made = ledger.make_tenant(quota=5)
        ledger.submit(made, 3)
        operator.post(f"/batches?tenant={made.slug}", {"name": f"b{number}", "runs": [{"spec": SPEC}] * 2})
    ledger.admit_all(make_driver())
    operator.get(path)
    with django_assert_max_num_queries(most):
        assert len(operator.get(path).json()["results"]) >= 3


def test_submitting_a_thousand_runs_costs_a_handful_of_statements(
    tenant: Caller, django_assert_max_num_queries: Any
) -> None:
    body = {"name": "b", "runs": [{"spec": SPEC, "idempotency_key": str(n)} for n in range(1000)]}
    tenant.get("/runs")
    with django_assert_max_num_queries(13):
        assert tenant.post("/batches", body).json()["created"] == 1000


def test_a_submit_is_two_statements(tenant: Caller, django_assert_num_queries: Any) -> None:
    tenant.post("/runs", {"command": ["true"]})
    with django_assert_num_queries(2) as seen:  # who calls; tenant, depth and insert in one
        assert tenant.post("/runs", {"command": ["true"]}).status_code == 201
    assert "INSERT INTO admission_run" in seen.captured_queries[1]["sql"]
