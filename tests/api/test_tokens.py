"""Who may call: tokens, their death, and what they open."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from admission.models import ApiToken
from admission.services.tenants import revoke_token
from controlplane.core.audit import SYSTEM
from controlplane.core.tokens import new_token, token_hash
from tests import ledger
from tests.api.conftest import Caller

pytestmark = pytest.mark.django_db


def token_row(caller: Caller) -> ApiToken:
    return ApiToken.objects.get(hash=token_hash(caller.token))


def test_without_a_token_the_answer_says_what_is_asked_for(nobody: Caller) -> None:
    answer = nobody.get("/runs")
    assert answer.status_code == 401
    assert answer["WWW-Authenticate"].startswith("Bearer")
    assert answer["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize(
    "token",
    [
        "nonsense",
        "wht_",
        pytest.param("wht_" + "x" * 10_000, id="long"),
        "wht_ü",
        "whr_AAAA",
        "a b c",
        # Named: two workers that drew different tokens would disagree about which tests there are.
        pytest.param(new_token("wht"), id="unknown tenant"),
        pytest.param(new_token("who"), id="unknown operator"),
    ],
)
def test_a_token_that_is_none_is_401(token: str) -> None:
    assert Caller(token).get("/runs").status_code == 401


def test_another_scheme_is_401(tenant: Caller, client: Any) -> None:
    assert client.get("/api/v1/runs", headers={"authorization": f"Basic {tenant.token}"}).status_code == 401


@pytest.mark.rule("Q2")
def test_a_revoked_token_is_dead_at_the_next_call(tenant: Caller) -> None:
    assert tenant.get("/runs").status_code == 200
    revoke_token(token_row(tenant), actor=SYSTEM)
    assert tenant.get("/runs").json()["code"] == "bad_token"


def test_an_expired_token_is_dead(tenant: Caller) -> None:
    ApiToken.objects.filter(pk=token_row(tenant).pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    assert tenant.get("/runs").status_code == 401


def test_an_operator_who_left_is_out(make_operator: Any) -> None:
    assert make_operator("admission.view_run", is_active=False).get("/runs").status_code == 401


@pytest.mark.rule("O3")
@pytest.mark.parametrize("path", ["/runs/{run}", "/runs/{run}/logs"])
def test_another_tenants_run_is_as_if_it_were_not(tenant: Caller, stranger: Caller, path: str) -> None:
    run = ledger.submit(tenant.tenant)[0]
    assert tenant.get(path.format(run=run)).status_code == 200
    theirs, nones = stranger.get(path.format(run=run)), stranger.get(path.format(run=999_999))
    assert theirs.status_code == nones.status_code == 404
    assert {**theirs.json(), "detail": "", "request_id": ""} == {**nones.json(), "detail": "", "request_id": ""}


@pytest.mark.rule("O3")
def test_another_tenants_run_cannot_be_cancelled(tenant: Caller, stranger: Caller) -> None:
    run = ledger.submit(tenant.tenant)[0]
    assert stranger.post(f"/runs/{run}/cancel").status_code == 404
    assert ledger.state(run) == "queued"


@pytest.mark.rule("O3")
def test_lists_hold_the_callers_own_only(tenant: Caller, stranger: Caller) -> None:
    mine = ledger.submit(tenant.tenant, 2)
    ledger.submit(stranger.tenant, 2)
    assert [run["id"] for run in tenant.get("/runs").json()["results"]] == mine[::-1]
    # Naming another tenant finds nothing, and does not say whether it exists.
    assert tenant.get(f"/runs?tenant={stranger.tenant.slug}").json()["results"] == []
    assert [t["slug"] for t in tenant.get("/tenants").json()["results"]] == [tenant.tenant.slug]


def test_a_tenant_does_no_operators_work(tenant: Caller) -> None:
    slug = tenant.tenant.slug
    assert tenant.post("/tenants", {"slug": "more"}).status_code == 403
    assert tenant.put(f"/tenants/{slug}/quota", {"limit": 1000}).status_code == 403
    assert tenant.delete(f"/tenants/{slug}/quota").status_code == 403
    assert tenant.get("/replicas").status_code == 403
    assert tenant.get("/runners").status_code == 403
    assert tenant.post("/enrolment-tokens", {}).status_code == 403


def test_an_operator_needs_each_permission(make_operator: Any, tenant: Caller) -> None:
    ledger.submit(tenant.tenant)
    viewer = make_operator("admission.view_run")
    assert len(viewer.get("/runs").json()["results"]) == 1
    assert viewer.get("/tenants").status_code == 403
    assert viewer.post(f"/runs?tenant={tenant.tenant.slug}", {"command": ["x"]}).status_code == 403


def test_the_use_of_a_token_is_noted_once_a_minute(tenant: Caller, django_assert_num_queries: Any) -> None:
    tenant.get("/permits")
    used = token_row(tenant).last_used_at
    assert used is not None
    with django_assert_num_queries(2):  # the token and the list: no write
        tenant.get("/permits")
    assert token_row(tenant).last_used_at == used
