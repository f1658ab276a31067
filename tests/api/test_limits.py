"""Limits below the tenant over REST."""

from __future__ import annotations

from typing import Any

import pytest

from tests import ledger
from tests.api.conftest import Call, Caller

pytestmark = pytest.mark.django_db


@pytest.mark.rule("A20", "O2")
def test_an_operator_sets_and_lists_limits(operator: Caller, tenant: Caller) -> None:
    slug = tenant.tenant.slug
    made = operator.put("/limits", {"scope": "harness", "key": "tank", "limit": 4, "reason": "four seats"})
    assert (made.status_code, made.json()["sentence"]) == (200, "0 in use, limit 4.")
    operator.put("/limits", {"scope": "key", "tenant": slug, "key": "deploy", "limit": 2, "reason": "x"})
    shown = operator.get("/limits").json()["results"]
    assert {(one["scope"], one["tenant"], one["key"], one["limit"]) for one in shown} == {
        ("harness", None, "tank", 4),
        ("key", slug, "deploy", 2),
    }
    for query, count in (("scope=key", 1), ("key=deploy", 1), ("key=tank", 1), (f"tenant={slug}", 1), ("key=x", 0)):
        assert len(operator.get(f"/limits?{query}").json()["results"]) == count, query


@pytest.mark.rule("O3")
def test_a_tenant_sees_its_own_keys_and_sets_nothing(tenant: Caller, stranger: Caller, operator: Caller) -> None:
    ledger.submit(tenant.tenant, concurrency_key="deploy", harness="tank")
    assert [one["key"] for one in tenant.get("/limits").json()["results"]] == ["deploy"]
    assert stranger.get("/limits").json()["results"] == []
    assert tenant.put("/limits", {"scope": "harness", "key": "tank", "limit": 1, "reason": "x"}).status_code == 403


def test_without_the_permission_it_is_403(make_operator: Call) -> None:
    caller = make_operator("admission.view_counter")
    assert caller.get("/limits").status_code == 200
    assert caller.put("/limits", {"scope": "harness", "key": "tank", "limit": 1, "reason": "x"}).status_code == 403


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"scope": "harness", "key": "tank"},
        {"scope": "tenant", "key": "1", "limit": 1},
        {"scope": "key", "key": "deploy", "limit": 1},
        {"scope": "harness", "tenant": "acme", "key": "tank", "limit": 1},
        {"scope": "harness", "key": "tank", "limit": -1},
        {"scope": "harness", "key": "", "limit": 1},
        {"scope": "harness", "key": " tank", "limit": 1},
    ],
)
def test_wrong_bodies_are_refused(operator: Caller, body: Any) -> None:
    assert operator.put("/limits", body).status_code == 400


def test_a_key_cannot_be_unbounded_and_an_unknown_tenant_is_404(operator: Caller, tenant: Caller) -> None:
    body = {"scope": "key", "tenant": tenant.tenant.slug, "key": "deploy", "limit": None}
    assert operator.put("/limits", body).status_code == 400
    assert operator.put("/limits", {**body, "tenant": "nobody", "limit": 1, "reason": "x"}).status_code == 404
