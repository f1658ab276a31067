"""Tenants and quotas over REST."""

from __future__ import annotations

from typing import Any

import pytest

from admission.models import Tenant
from controlplane.core.models import AuditEntry
from tests import ledger
from tests.api.conftest import Caller

pytestmark = pytest.mark.django_db


def test_an_operator_makes_and_changes_tenants(operator: Caller) -> None:
    made = operator.post("/tenants", {"slug": "acme", "name": "Acme", "weight": 1.5, "reason": "new customer"})
    assert made.status_code == 201
    assert made.json()["weight"] == "1.500"
    assert operator.post("/tenants", {"slug": "acme"}).status_code == 409
    changed = operator.patch("/tenants/acme", {"weight": "2.5", "queue_depth": 10}).json()
    assert (changed["weight"], changed["queue_depth"], changed["name"]) == ("2.500", 10, "Acme")
    cleared = operator.patch("/tenants/acme", {"queue_depth": None}).json()
    assert (cleared["queue_depth"], cleared["weight"]) == (None, "2.500")
    assert AuditEntry.objects.filter(subject="acme", verb="create", reason="new customer").exists()


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"slug": "A B"},
        {"slug": "a", "weight": 0},
        {"slug": "a", "weight": "x"},
        {"slug": "a", "weight": True},
        {"slug": "a", "weight": 1e12},
        {"slug": "a", "queue_depth": -1},
        {"slug": "a", "queue_depth": 2**31},
        {"slug": "a", "has_quota": True},
    ],
)
def test_wrong_tenants_are_refused(operator: Caller, body: Any) -> None:
    assert operator.post("/tenants", body).status_code == 400
    assert not Tenant.objects.exists()


@pytest.mark.parametrize("body", [{}, {"slug": "other"}, {"in_flight": 3}, {"weight": -1}, {"reason": "x"}])
def test_wrong_changes_are_refused(operator: Caller, tenant: Caller, body: Any) -> None:
    assert operator.patch(f"/tenants/{tenant.tenant.slug}", body).status_code == 400


@pytest.mark.rule("A26")
def test_pause_and_resume(operator: Caller, tenant: Caller) -> None:
    path = f"/tenants/{tenant.tenant.slug}"
    assert operator.post(f"{path}/pause", {}).status_code == 400  # a reason is asked for
    paused = operator.post(f"{path}/pause", {"reason": "audit", "resume_at": "2100-01-01T00:00:00Z"}).json()
    assert (paused["pause_note"], paused["resume_at"]) == ("audit", "2100-01-01T00:00:00Z")
    assert operator.post(f"{path}/resume", {"reason": "it is over"}).json()["paused_at"] is None
    assert tenant.post(f"{path}/pause", {"reason": "x"}).status_code == 403


@pytest.mark.rule("O3")
def test_a_quota_is_changed_only_as_it_was_seen(operator: Caller, tenant: Caller) -> None:
    path = f"/tenants/{tenant.tenant.slug}/quota"
    seen = operator.get(path)
    assert (seen.json()["limit"], seen["ETag"]) == (None, '"none"')
    first = operator.put(path, {"limit": 3, "reason": "start"}, **{"If-Match": seen["ETag"]})
    assert (first.status_code, first["ETag"]) == (200, '"3"')
    stale = operator.put(path, {"limit": 9, "reason": "x"}, **{"If-Match": seen["ETag"]})
    assert (stale.status_code, stale.json()["code"]) == (412, "precondition_failed")
    assert operator.get(path).json()["limit"] == 3
    assert operator.delete(f"{path}?reason=x", **{"If-Match": '"7"'}).status_code == 412
    removed = operator.delete(f"{path}?reason=done", **{"If-Match": first["ETag"]})
    assert (removed.status_code, removed.json()["limit"], removed["ETag"]) == (200, None, '"none"')


def test_a_quota_without_if_match_is_the_last_word(operator: Caller, tenant: Caller) -> None:
    path = f"/tenants/{tenant.tenant.slug}/quota"
    assert operator.put(path, {"limit": 3, "reason": "x"}).status_code == 200
    assert operator.put(path, {"limit": 4, "reason": "x"}, **{"If-Match": "*"}).json()["before"] == 3


@pytest.mark.rule("A15")
def test_the_answer_says_what_the_change_meets(operator: Caller, tenant: Caller, make_driver: Any) -> None:
    path = f"/tenants/{tenant.tenant.slug}/quota"
    operator.put(path, {"limit": 5, "reason": "x"})
    ledger.submit(tenant.tenant, 4)
    ledger.admit_all(make_driver())
    preview = operator.put(f"{path}?dry_run=true", {"limit": 1}).json()
    assert (preview["applied"], preview["over"]) == (False, 3)
    assert operator.get(path).json()["limit"] == 5
    done = operator.put(path, {"limit": 1, "reason": "less"}).json()
    assert (done["applied"], done["sentence"]) == (True, "4 in use, new limit 1: 3 over, nothing is killed.")
    entry = AuditEntry.objects.filter(verb="set_quota").first()
    assert entry is not None
    assert (entry.before, entry.reason, entry.after) == ({"quota": 5}, "less", {"quota": 1, "in_flight": 4})
    assert entry.user_id is not None


@pytest.mark.parametrize("limit", [-1, 2**31, 1.5, "3", True, None, "x", [], 10**400])
def test_a_wrong_limit_is_refused(operator: Caller, tenant: Caller, limit: Any) -> None:
    assert operator.put(f"/tenants/{tenant.tenant.slug}/quota", {"limit": limit, "reason": "x"}).status_code == 400


def test_a_tenant_sees_its_own_quota(tenant: Caller, stranger: Caller) -> None:
    assert tenant.get(f"/tenants/{tenant.tenant.slug}/quota").status_code == 200
    assert stranger.get(f"/tenants/{tenant.tenant.slug}/quota").status_code == 404


@pytest.mark.parametrize("quota", [None, 5])
def test_a_tenants_use_is_shown_with_and_without_a_quota(
    make_driver: Any, operator: Caller, quota: int | None
) -> None:
    made = ledger.make_tenant(quota=quota)
    ledger.submit(made, 2, weight=2)
    ledger.admit_all(make_driver())
    shown = operator.get(f"/tenants/{made.slug}").json()
    assert (shown["quota"], shown["in_flight"]) == (quota, 4)


@pytest.mark.rule("A26", "O2")
def test_a_tenant_is_deleted_refused_or_drained(operator: Caller, tenant: Caller, make_driver: Any) -> None:
    path, driver = f"/tenants/{tenant.tenant.slug}", make_driver()
    ledger.submit(tenant.tenant, 2, concurrency_key="one")
    held = ledger.start(driver, ledger.admit_all(driver))
    assert operator.delete(path).status_code == 400, "it must say why"
    busy = operator.delete(f"{path}?reason=left")
    assert (busy.status_code, busy.json()["code"]) == (409, "tenant_busy")
    draining = operator.delete(f"{path}?drain=true&reason=left")
    assert (draining.status_code, draining.json()["deleting_at"] is None) == (202, False)
    ledger.succeed(driver, held)
    assert operator.delete(f"{path}?reason=left").status_code == 204
    assert operator.get(path).status_code == 404
    assert tenant.delete(path).status_code == 401, "its token went with it"


def test_a_tenant_cannot_delete_itself(tenant: Caller) -> None:
    assert tenant.delete(f"/tenants/{tenant.tenant.slug}").status_code == 403


@pytest.mark.rule("A26")
def test_a_pause_that_would_be_over_already_is_refused(operator: Caller, tenant: Caller) -> None:
    slug = tenant.tenant.slug
    body = {"reason": "x", "resume_at": "2001-01-01T00:00:00Z"}
    answer = operator.post(f"/tenants/{slug}/pause", body)
    assert (answer.status_code, "give a time to come" in answer.json()["detail"]) == (400, True)
    assert Tenant.objects.get(slug=slug).paused_at is None
