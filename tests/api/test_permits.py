"""Permits as a service."""

from __future__ import annotations

from typing import Any

import pytest

from tests import ledger
from tests.api.conftest import Caller, tenant_caller

pytestmark = pytest.mark.django_db


@pytest.fixture
def capped(db: None) -> Caller:
    return tenant_caller(quota=3)


@pytest.mark.rule("A23")
@pytest.mark.rule("A6")
def test_a_claim_repeated_is_the_same_right(capped: Caller) -> None:
    first, again = (capped.post("/permits", {"id": "job:1", "weight": 2}) for _ in range(2))
    assert (first.status_code, first.json()["outcome"]) == (201, "granted")
    assert (again.status_code, again.json()["outcome"]) == (200, "held")
    assert ledger.in_flight(capped.tenant) == 2


@pytest.mark.rule("A7")
def test_the_same_id_with_another_weight_is_a_conflict(capped: Caller) -> None:
    capped.post("/permits", {"id": "x"})
    answer = capped.post("/permits", {"id": "x", "weight": 2})
    assert (answer.status_code, answer.json()["code"]) == (409, "permit_conflict")


@pytest.mark.rule("A4")
@pytest.mark.django_db(transaction=True)
def test_beyond_the_limit_is_429(capped: Caller) -> None:
    capped.post("/permits", {"id": "x", "weight": 3})
    answer = capped.post("/permits", {"id": "y"})
    assert (answer.status_code, answer.json()["code"]) == (429, "no_slot")
    assert int(answer["Retry-After"]) >= 1
    ledger.assert_conserved()


@pytest.mark.rule("A8")
def test_release_says_whether_it_was_held(capped: Caller) -> None:
    capped.post("/permits", {"id": "x"})
    assert capped.delete("/permits/x").json() == {"id": "x", "released": True}
    assert capped.delete("/permits/x").json() == {"id": "x", "released": False}
    assert ledger.in_flight(capped.tenant) == 0


@pytest.mark.rule("A23")
def test_renewal_says_what_is_gone(capped: Caller) -> None:
    capped.post("/permits", {"id": "x", "lapse_seconds": 60})
    assert capped.post("/permits/x/renew").json() == {"id": "x", "outcome": "renewed", "lapse_seconds": 60}
    assert capped.post("/permits/y/renew").status_code == 404


def test_two_tenants_may_use_the_same_id(capped: Caller, stranger: Caller) -> None:
    assert capped.post("/permits", {"id": "x"}).status_code == 201
    assert stranger.post("/permits", {"id": "x"}).status_code == 201
    assert stranger.delete("/permits/x").json()["released"] is True
    assert capped.post("/permits/x/renew").status_code == 200


def test_a_runs_permit_is_not_the_callers_to_release(capped: Caller, make_driver: Any) -> None:
    run = ledger.submit(capped.tenant)[0]
    ledger.admit_all(make_driver())
    shown = capped.get("/permits").json()["results"]
    assert [(p["id"], p["run"]) for p in shown] == [(f"{run}.1", run)]
    assert capped.delete(f"/permits/{run}.1").json()["released"] is False
    assert ledger.in_flight(capped.tenant) == 1


def test_the_list_shows_the_lease_that_is_left(capped: Caller) -> None:
    capped.post("/permits", {"id": "job:7", "lapse_seconds": 100})
    permit = capped.get("/permits?scope=tenant").json()["results"][0]
    assert permit["id"] == "job:7"
    assert 90 < permit["lapses_in_seconds"] <= 100


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"id": ""},
        {"id": "a/b"},
        {"id": "x" * 201},
        {"id": "x", "weight": 0},
        {"id": "x", "weight": 2**31},
        {"id": "x", "weight": "1"},
        {"id": "x", "lapse_seconds": 0},
        {"id": "x", "lapse_seconds": 1e9},
        {"id": "x", "holder": "y"},
    ],
)
def test_wrong_claims_are_refused(capped: Caller, body: Any) -> None:
    assert capped.post("/permits", body).status_code == 400


def test_operators_look_and_do_not_claim(operator: Caller, capped: Caller) -> None:
    capped.post("/permits", {"id": "x"})
    assert len(operator.get("/permits").json()["results"]) == 1
    assert operator.post("/permits", {"id": "y"}).status_code == 403
    assert operator.delete("/permits/x").status_code == 403
