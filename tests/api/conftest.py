"""Callers of the API: a tenant, another one, an operator with permissions, nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from admission.models import Tenant
from admission.services.operator_tokens import issue_operator_token
from admission.services.submitting import _fleet_depth
from admission.services.tenants import issue_token
from controlplane.core.audit import SYSTEM
from tests import ledger

Call = Callable[..., Any]


class Caller:
    """Calls /api/v1 with one token; `call.get("/runs")`, `call.post("/runs", {...}, **headers)`."""

    def __init__(self, token: str = "", tenant: Tenant | None = None) -> None:
        self.token = token
        self.tenant = tenant
        self._client = Client(headers={"authorization": f"Bearer {token}"} if token else {})

    def get(self, path: str, **headers: str) -> Any:
        return self._client.get(f"/api/v1{path}", headers=headers)

    def delete(self, path: str, **headers: str) -> Any:
        return self._client.delete(f"/api/v1{path}", headers=headers)

    def post(self, path: str, body: object = None, **headers: str) -> Any:
        return self._send("post", path, body, headers)

    def put(self, path: str, body: object = None, **headers: str) -> Any:
        return self._send("put", path, body, headers)

    def patch(self, path: str, body: object = None, **headers: str) -> Any:
        return self._send("patch", path, body, headers)

    def _send(self, method: str, path: str, body: object, headers: dict[str, str]) -> Any:
        kind = headers.pop("content_type", "application/json")
        data = {} if body is None else body
        return getattr(self._client, method)(f"/api/v1{path}", data, content_type=kind, headers=headers)


@pytest.fixture(autouse=True)
def _count_anew() -> None:
    """The fleet's depth is kept for a second; another test's must not be read here."""
    _fleet_depth.forget()


def tenant_caller(**tenant: Any) -> Caller:
    made = ledger.make_tenant(**tenant)
    return Caller(issue_token(made, "test", actor=SYSTEM)[1], made)


@pytest.fixture
def tenant(db: None) -> Caller:
    return tenant_caller()


@pytest.fixture
def stranger(db: None) -> Caller:
    return tenant_caller()


@pytest.fixture
def make_operator(db: None) -> Call:
    """`make_operator("admission.set_quota")`: an operator with these permissions and no other."""

    def make(*permissions: str, **user: Any) -> Caller:
        account = User.objects.create_user(f"operator-{User.objects.count()}", **user)
        for permission in permissions:
            app, _, name = permission.partition(".")
            account.user_permissions.add(Permission.objects.get(content_type__app_label=app, codename=name))
        _, secret = issue_operator_token(account, "test", actor=SYSTEM)
        return Caller(secret)

    return make


@pytest.fixture
def operator(make_operator: Call) -> Caller:
    """May everything."""
    caller: Caller = make_operator(is_superuser=True)
    return caller


@pytest.fixture
def nobody(db: None) -> Caller:
    return Caller()
