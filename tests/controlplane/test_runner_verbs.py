"""Verbs over runners, enrolment tokens and API tokens from the shell and in the admin: the same services (rule O2)."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse

from admission.models import ApiToken
from controlplane.core.models import AuditEntry
from runners.models import EnrolmentToken, Runner
from tests import ledger
from tests.api.conftest import Caller
from tests.runners.conftest import RunnerCaller, make_runner

pytestmark = [pytest.mark.django_db, pytest.mark.rule("O2", "Q11")]


@pytest.fixture(autouse=True)
def _ready(monkeypatch: pytest.MonkeyPatch) -> None:
    for command in ("runner", "enrolment", "token"):
        monkeypatch.setattr(f"controlplane.management.commands.{command}.refuse_unless_ready", lambda: None)


@pytest.fixture
def runner(db: None) -> RunnerCaller:
    return make_runner(name="m1")


def shell(*words: object, **options: Any) -> str:
    out = io.StringIO()
    call_command(*map(str, words), stdout=out, stderr=io.StringIO(), **options)
    return out.getvalue()


def verbs() -> list[tuple[str, str]]:
    return list(AuditEntry.objects.order_by("pk").values_list("verb", "reason"))


def test_runners_are_listed(runner: RunnerCaller) -> None:
    make_runner(name="m2")
    runner.get("/runner")
    found = json.loads(shell("runner", "list", "--json"))["runners"]
    assert [(r["name"], r["mode"], r["live"]) for r in found] == [("m1", "active", True), ("m2", "active", False)]
    assert "never heard" in shell("runner", "list")


def test_each_verb_from_the_shell_is_done_once_and_audited(runner: RunnerCaller) -> None:
    number = runner.runner
    said = [
        shell("runner", verb, number, "--reason", "why", "--yes") for verb in ("pause", "pause", "resume", "drain")
    ]
    assert [s.partition(": ")[2].strip() for s in said] == [
        "paused", "was paused already", "takes work again", "drains",
    ]  # fmt: skip
    rotated = shell("runner", "rotate", number, "--reason", "why", "--yes", "--overlap-hours", "0")
    token = rotated.partition(": ")[2].splitlines()[0]
    assert Caller(token).get("/runner").status_code == 200
    assert "0 runs taken" in shell("runner", "revoke", number, "--reason", "why", "--yes")
    assert Caller(token).get("/runner").status_code == 401
    assert verbs()[-5:] == [(v, "why") for v in ("pause", "resume", "drain", "rotate", "revoke")]


def test_a_pause_from_the_shell_has_an_end(runner: RunnerCaller) -> None:
    shell("runner", "pause", runner.runner, "--reason", "disk", "--until", "2099-01-31T08:00:00Z", "--yes")
    row = Runner.objects.get()
    assert (row.pause_note, row.resume_at.year if row.resume_at else 0) == ("disk", 2099)
    with pytest.raises(CommandError, match="time zone"):
        shell("runner", "pause", runner.runner, "--reason", "x", "--until", "2099-01-31", "--yes")


def test_the_exact_count_is_asked_for(runner: RunnerCaller, monkeypatch: pytest.MonkeyPatch) -> None:
    other = make_runner()
    ledger.submit(ledger.make_tenant(), 2)
    runner.claimed()
    asked: list[str] = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)

    def answer(text: str) -> str:
        asked.append(text)
        return "1"

    monkeypatch.setattr("builtins.input", answer)
    with pytest.raises(CommandError, match="Nothing was done"):
        shell("runner", "drain", runner.runner, other.runner, "--reason", "x")
    assert "drain 2 runners holding 2 runs" in asked[0]
    assert not Runner.objects.filter(draining_at__isnull=False).exists()
    shell("runner", "drain", runner.runner, "--reason", "x")
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    with pytest.raises(CommandError, match="give --yes"):
        shell("runner", "drain", other.runner, "--reason", "x")


@pytest.mark.parametrize("words", [("pause",), ("pause", 1), ("pause", 999_999, "--reason", "x"), ("rotate", 1, 2)])
def test_what_is_missing_is_said(runner: RunnerCaller, words: tuple[object, ...]) -> None:
    with pytest.raises(CommandError):
        shell("runner", *words, "--yes")


@pytest.mark.rule("Q2")
def test_enrolment_tokens_from_the_shell(runner: RunnerCaller) -> None:
    ledger.make_tenant(slug="acme")
    options = (
        "--uses",
        2,
        "--hours",
        2,
        "--tenant",
        "acme",
        "--trust",
        "trust.zone=a",
        "--one-job",
        "--name",
        "racks",
        "--reason",
        "two racks",
    )
    issued = json.loads(shell("enrolment", "issue", *options, "--json"))
    made = Caller().post("/runners/enrol", {"token": issued["token"], "name": "m"})
    assert made.status_code == 201
    row = Runner.objects.get(pk=made.json()["id"])
    assert (str(row.tenant), row.trust_labels, row.one_job) == ("acme", {"trust.zone": "a"}, True)
    listed = json.loads(shell("enrolment", "list", "--json"))["enrolment_tokens"]
    assert [(t["name"], t["uses_left"]) for t in listed] == [("racks", 1)]
    assert issued["token"] not in str(listed) + shell("enrolment", "list")
    assert "revoked" in shell("enrolment", "revoke", issued["id"], "--reason", "x", "--yes")
    assert Caller().post("/runners/enrol", {"token": issued["token"], "name": "m"}).status_code == 401
    back = shell("enrolment", "issue", "--runner", runner.runner, "--reason", "back").strip()
    assert Caller().post("/runners/enrol", {"token": back, "name": "m"}).json()["id"] == runner.runner
    with pytest.raises(CommandError):
        shell("enrolment", "issue", "--trust", "nonsense", "--reason", "x")


def test_api_tokens_from_the_shell() -> None:
    made = ledger.make_tenant(slug="acme")
    secret = shell("token", "issue", "acme", "--name", "nightly", "--days", 1, "--reason", "nightly runs").strip()
    assert Caller(secret).get("/runs").status_code == 200
    [listed] = json.loads(shell("token", "list", "acme", "--json"))["tokens"]
    assert (listed["name"], listed["status"]) == ("nightly", "valid")
    assert secret not in shell("token", "list", "acme")
    assert "revoked" in shell("token", "revoke", "acme", listed["id"], "--reason", "x", "--yes")
    assert Caller(secret).get("/runs").status_code == 401
    other = ledger.make_tenant()
    with pytest.raises(CommandError, match="no token"):
        shell("token", "revoke", other.slug, listed["id"], "--reason", "x", "--yes")
    with pytest.raises(CommandError, match="--name"):
        shell("token", "issue", "acme")
    assert ApiToken.objects.filter(tenant=made).count() == 1


# -- the admin --------------------------------------------------------------------------------------------------------

Confirm = Callable[..., Any]


@pytest.fixture
def confirm(client: Client) -> Confirm:
    """`confirm("runner", "pause", 3, reason="x")`: the confirmed page of a verb, as an admin."""
    person = User.objects.create_user("admin", password="x", is_staff=True)
    person.groups.add(Group.objects.get(name="admin"))
    client.force_login(person)

    def post(model: str, verb: str, row: int | None, **values: Any) -> Any:
        address = reverse(f"admin:runners_{model}_verb", args=[verb])
        data = {"reason": "why", "step": "confirm", "seen": "", **values, **({"ids": row} if row else {})}
        return client.post(address, data)

    return post


@pytest.mark.rule("Q2")
def test_the_admin_rotates_and_brings_back_and_shows_each_secret_once(confirm: Confirm, runner: RunnerCaller) -> None:
    page = confirm("runner", "rotate", runner.runner, hours=0)
    token = page.context["secret"]
    assert token.encode() in page.content
    assert Caller(token).get("/runner").status_code == 200
    back = confirm("runner", "bring-back", runner.runner).context["secret"]
    answer = Caller().post("/runners/enrol", {"token": back, "name": "again"})
    assert answer.json()["id"] == runner.runner
    assert Caller(token).get("/runner").status_code == 401
    assert "rotate" in [verb for verb, _ in verbs()]


def test_the_admin_pauses_until_a_time(confirm: Confirm, runner: RunnerCaller) -> None:
    assert confirm("runner", "pause", runner.runner, resume_at="2001-01-01T00:00").status_code == 200
    assert Runner.objects.get().paused_at is None
    assert confirm("runner", "pause", runner.runner, resume_at="2099-01-01T00:00").status_code == 302
    row = Runner.objects.get()
    assert (row.pause_note, row.resume_at.year if row.resume_at else 0) == ("why", 2099)


def test_the_admin_gives_trust_labels_and_one_run_modes(confirm: Confirm) -> None:
    values = {"name": "racks", "uses": 1, "hours": 1, "one_job": "on"}
    refused = confirm("enrolmenttoken", "issue", None, **values, trust_labels="zone")
    assert b"name=value" in refused.content
    confirm("enrolmenttoken", "issue", None, **values, trust_labels="trust.zone=a\ntrust.level=2\n")
    row = EnrolmentToken.objects.get()
    assert (row.trust_labels, row.one_job) == ({"trust.zone": "a", "trust.level": "2"}, True)


def test_a_rotation_needs_its_own_permission(client: Client, runner: RunnerCaller) -> None:
    person = User.objects.create_user("op", password="x", is_staff=True)
    person.groups.add(Group.objects.get(name="operator"))
    client.force_login(person)
    address = reverse("admin:runners_runner_verb", args=["rotate"])
    assert client.post(address, {"ids": runner.runner, "reason": "x", "hours": 1}).status_code == 403
