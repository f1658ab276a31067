"""`why` over REST, on the command line and in the admin: one answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from typer.testing import CliRunner

from admission.services.limits import set_harness_capacity
from admission.services.permits import claim_permit
from controlplane.core.audit import SYSTEM
from runners.cli import app
from tests import ledger
from tests.api.conftest import Caller, tenant_caller


@pytest.fixture
def waiting(db: None, make_driver: Any) -> tuple[Caller, int]:
    """A tenant at its quota, one slot held from outside; and its run that waits."""
    caller, driver = tenant_caller(quota=2), make_driver()
    ledger.submit(caller.tenant)
    ledger.start(driver, ledger.admit_all(driver))
    claim_permit(f"ext:{caller.tenant.pk}:job:7", tenant_id=caller.tenant.pk)
    return caller, ledger.submit(caller.tenant)[0]


@pytest.mark.django_db
@pytest.mark.rule("A24", "O3")
def test_rest_answers_the_tenant_and_the_operator_and_404_to_others(
    waiting: tuple[Caller, int], stranger: Caller, operator: Caller, nobody: Caller
) -> None:
    caller, run = waiting
    answer = caller.get(f"/runs/{run}/why")
    assert answer.status_code == 200
    body = answer.json()
    assert (body["state"], body["blockers"][0]["code"], body["standing"]["position"]) == ("queued", "quota", 1)
    assert {h["holder"] for h in body["blockers"][0]["holders"]} == {"job:7", f"{run - 1}.1"}
    assert operator.get(f"/runs/{run}/why").json()["blockers"][0]["code"] == "quota"
    assert stranger.get(f"/runs/{run}/why").status_code == 404
    assert nobody.get(f"/runs/{run}/why").status_code == 401
    assert caller.get("/runs/999999999/why").status_code == 404


@pytest.mark.django_db
@pytest.mark.rule("O3")
def test_others_holders_are_without_names(waiting: tuple[Caller, int], stranger: Caller, make_driver: Any) -> None:
    set_harness_capacity("tank", 1, actor=SYSTEM)
    caller, _ = waiting
    ledger.submit(stranger.tenant, harness="tank")
    ledger.admit_all(make_driver())
    [run] = ledger.submit(caller.tenant, harness="tank")
    text = caller.get(f"/runs/{run}/why").content.decode()
    assert "harness_full" in text
    assert stranger.tenant.slug not in text


@pytest.mark.django_db(transaction=True)
@pytest.mark.rule("A24", "X5")
def test_the_command_line_says_the_same(waiting: tuple[Caller, int], live_server: Any, monkeypatch: Any) -> None:
    caller, run = waiting
    monkeypatch.setenv("WHARFINGER_URL", live_server.url)
    monkeypatch.setenv("WHARFINGER_TOKEN", caller.token)
    said = CliRunner().invoke(app, ["why", str(run)])
    assert said.exit_code == 0, said.output
    for part in ("is full: 2 of 2 in use", "[quota]", "job:7", "place 1 of its tenant", "as of"):
        assert part in said.output
    as_json = json.loads(CliRunner().invoke(app, ["why", str(run), "--json"]).output)
    rest = caller.get(f"/runs/{run}/why").json()
    assert [b["code"] for b in as_json["blockers"]] == [b["code"] for b in rest["blockers"]]
    assert CliRunner().invoke(app, ["why", "999999999"]).exit_code == 1
    assert "does not wait" in CliRunner().invoke(app, ["why", str(run - 1)]).output


@pytest.mark.django_db(transaction=True)
@pytest.mark.rule("O2")
def test_limits_on_the_command_line(operator: Caller, live_server: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("WHARFINGER_URL", live_server.url)
    monkeypatch.setenv("WHARFINGER_TOKEN", operator.token)
    assert "limit 3" in CliRunner().invoke(app, ["set-limit", "tank", "3", "--reason", "three"]).output
    listed = CliRunner().invoke(app, ["limits", "--scope", "harness"])
    assert listed.output.split("\t") == ["harness", "", "tank", "0", "3\n"]


@pytest.mark.django_db
@pytest.mark.rule("A24", "O1")
def test_the_runs_page_shows_it_while_the_run_waits(
    waiting: tuple[Caller, int], settings: Any, django_assert_max_num_queries: Any
) -> None:
    settings.STATIC_ROOT = None
    _, run = waiting
    page = Client()
    page.force_login(User.objects.create_superuser("root"))
    address = reverse("admin:admission_run_change", args=[run])
    with django_assert_max_num_queries(20):
        shown = page.get(address).content.decode()
    assert "Why it waits" in shown
    assert "2 of 2 in use" in shown
    assert "job:7" in shown
    running = reverse("admin:admission_run_change", args=[run - 1])
    assert "Why it waits" not in page.get(running).content.decode()
