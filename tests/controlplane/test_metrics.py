"""The exposition, who may read it, and the alert rules that are made from it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.contrib.auth.models import User
from django.db import DatabaseError, connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from prometheus_client.parser import text_string_to_metric_families

from admission.engine import Envelope, admit
from admission.services.operator_tokens import issue_operator_token
from admission.services.tenants import issue_token
from controlplane import metrics
from controlplane.core.audit import SYSTEM
from tests import ledger

pytestmark = [pytest.mark.django_db, pytest.mark.rule("O4")]
ROOT = Path(__file__).resolve().parents[2]
TOKEN = "a token of the scraper"
STATEMENTS = 16


@pytest.fixture(autouse=True)
def _token() -> Iterator[None]:
    with override_settings(CONTROLPLANE={"metrics_token": TOKEN}):
        yield


@pytest.fixture(autouse=True)
def _nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "KEPT_SECONDS", 0.0)


def scrape(token: str = TOKEN) -> Any:
    return Client(headers={"authorization": f"Bearer {token}"} if token else {}).get("/metrics")


def numbers() -> dict[tuple[str, ...], float]:
    """(name, label values…) -> value."""
    found = {}
    for family in text_string_to_metric_families(scrape().content.decode()):
        for sample in family.samples:
            found[(sample.name, *sample.labels.values())] = sample.value
    return found


def test_numbers_are_those_of_the_ledger(make_tenant: Callable[..., Any], submit: Callable[..., list[int]]) -> None:
    tenant = make_tenant(quota=2)
    submit(tenant, 5)
    assert len(admit(ledger.make_driver(), Envelope(10))) == 2
    found = numbers()
    assert found["controlplane_runs", "queued"] == 3
    assert found["controlplane_runs", "admitted"] == 2
    assert found["controlplane_permits_in_use", tenant.slug] == found["controlplane_permit_limit", tenant.slug] == 2
    assert found["controlplane_tenants", "at_quota"] == 1
    assert found["controlplane_drifting_counters",] == 0
    assert found["controlplane_replicas", "live"] == 1


def test_a_drift_is_told(make_tenant: Callable[..., Any]) -> None:
    tenant = make_tenant(quota=2)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE admission_counter SET in_flight = 1 WHERE tenant_id = %s", [tenant.pk])
    assert numbers()["controlplane_drifting_counters",] == 1


def test_only_the_fullest_tenants_have_numbers_of_their_own(make_tenant: Callable[..., Any]) -> None:
    for _ in range(4):
        make_tenant(quota=1)
    with override_settings(CONTROLPLANE={"metrics_token": TOKEN, "metrics_tenants": 3}):
        assert sum(key[0] == "controlplane_permits_in_use" for key in numbers()) == 3


def test_the_number_of_statements_does_not_grow(
    make_tenant: Callable[..., Any], submit: Callable[..., list[int]]
) -> None:
    with CaptureQueriesContext(
        connection,
    ) as before:
        scrape()
    for _ in range(5):
        submit(make_tenant(quota=1), 3)
        ledger.make_driver()
    with CaptureQueriesContext(connection) as after:
        scrape()
    assert len(before) == len(after) <= STATEMENTS


def test_operators_may_read_and_nobody_else(make_tenant: Callable[..., Any]) -> None:
    operator = User.objects.create_user("op", password="x")
    _, token = issue_operator_token(operator, "scraper", actor=SYSTEM)
    _, of_tenant = issue_token(make_tenant(), "t", actor=SYSTEM)
    assert scrape(token).status_code == 200
    for wrong in ("", of_tenant, token[:-1], "x" * 10_000):
        answer = scrape(wrong)
        assert answer.status_code == 401
        assert b"controlplane_" not in answer.content
    User.objects.filter(pk=operator.pk).update(is_active=False)
    assert scrape(token).status_code == 401


def test_without_the_database_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> None:
        raise DatabaseError("away")

    monkeypatch.setattr(metrics, "collectors", lambda: [away])
    answer = scrape()
    assert answer.status_code == 503
    assert b"controlplane_" not in answer.content


def test_alert_rules_use_metrics_that_exist_and_are_explained() -> None:
    exposed = {family.name for family in text_string_to_metric_families(scrape().content.decode())}
    page = (ROOT / "docs/metrics.md").read_text()
    groups = yaml.safe_load((ROOT / "deploy/alerts.yml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > 10
    for rule in rules:
        assert set(re.findall(r"controlplane_\w+", rule["expr"])) <= exposed, rule["alert"]
        assert f"### {rule['alert']}" in page
    undocumented = [name for name in exposed if f"`{name}`" not in page and f"`{name}{{" not in page]
    assert undocumented == []
