"""What operators see and ask: one function behind admin, REST and manage.py; a Redis that is away holds up no page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.core import checks
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import Client, override_settings
from django.urls import reverse

from admission.checks import check_physical
from admission.metrics import collect
from admission.models import PhysicalReport
from admission.physical import gate
from admission.physical.entitlement import Entitlement
from admission.physical.errors import NotVerified
from admission.physical.protocol import PhysicalSlots, new_token
from admission.services import physical as service
from admission.services.operator_tokens import issue_operator_token
from admission.services.physical import PassReport, read_slots, reconcile_now, reconcile_number, report_pass
from controlplane.core.audit import SYSTEM, Actor
from controlplane.core.errors import Conflict, InvalidInput
from controlplane.core.models import AuditEntry
from controlplane.roles import install_roles
from tests.patience import standing_still
from tests.physical.server import OwnRedis, free_port
from tests.physical.world import World, container_id

pytestmark = pytest.mark.django_db

ANNA = Actor("anna")
PAGE = "/admin/admission/physicalreport/"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FLEET_SECRET", "INSTANCE_ID", "WORKER_CONCURRENCY", "RUN_LIMIT", "RUN_GENERATION"):
        monkeypatch.delenv(f"CONTROLPLANE_{name}", raising=False)


@pytest.fixture
def limited(
    make_world: Callable[..., World], server: OwnRedis, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[World, PhysicalSlots]]:
    """A self-hosted instance with a limit of 3, one running holder, one recovering, one waiter."""
    world = make_world(limit=2)
    monkeypatch.setenv("CONTROLPLANE_INSTANCE_ID", world.instance_id)
    monkeypatch.setenv("CONTROLPLANE_RUN_LIMIT", "2")
    slots = world.process(hosted=False)
    running, dead = new_token(), new_token()
    slots.acquire(running, "replica-1", "12/1")
    slots.register(running, "replica-1", container_id())
    slots.acquire(dead, "replica-2", "13/2")
    world.expire(dead)
    slots.acquire(new_token(), "replica-1", "14/1")
    with override_settings(REDIS_URL=server.url):
        yield world, slots
    service._opened.cache_clear()


def sign_in(role: str | None = None) -> Client:
    install_roles(Group, Permission)
    user = User.objects.create_user(f"user-{User.objects.count()}", is_staff=True, is_superuser=role is None)
    if role:
        user.groups.add(Group.objects.get(name=role))
    client = Client()
    client.force_login(user)
    return client


def entitlement() -> Entitlement:
    found = service.read_entitlement()
    assert isinstance(found, Entitlement)
    return found


@pytest.mark.rule("P15", "O1")
def test_the_page_shows_what_is_counted_beside_what_is_there(limited: tuple[World, PhysicalSlots]) -> None:
    report_pass(entitlement(), PassReport("replica-1", "harbour", running=1, created=1, without_token=1))
    report_pass(entitlement(), PassReport("replica-1", "harbour", running=1, created=1, error="removal refused"))
    report_pass(entitlement(), PassReport("replica-2", "harbour", running=2, other=1, without_token=1))
    client = sign_in("viewer")
    for address in (PAGE, reverse("admin:physical_live")):
        answer = client.get(address)
        assert answer.status_code == 200
        assert "no-store" in answer["Cache-Control"]
        text = answer.content.decode()
        for shown in (
            "replica-1",
            "run 12 · attempt 1",
            "recovering",
            "past its deadline",
            "containers without a slot: 1",
        ):
            assert shown in text, shown
        assert "2 running, 0 created, 1 other" in text
        assert "removal refused" in text
    assert "Reconcile now" not in client.get(PAGE).content.decode(), "a viewer may not"
    view = read_slots()
    assert view.snapshot is not None
    assert (view.snapshot.counts.running, view.snapshot.counts.recovering, view.snapshot.counts.waiting) == (1, 1, 1)


@pytest.mark.rule("O1")
def test_a_redis_that_is_away_or_silent_never_holds_up_a_page(
    limited: tuple[World, PhysicalSlots], start_server: Callable[..., OwnRedis]
) -> None:
    client = sign_in()
    silent = start_server()
    silent.pause()
    for url in (f"redis://127.0.0.1:{free_port()}/0", silent.url):
        with override_settings(REDIS_URL=url), standing_still() as waited:
            answer = client.get(PAGE)
            # The page's own bound for all exchanges together; what a busy machine adds is not counted.
            assert waited() < 2
            assert answer.status_code == 200
            assert "Nothing new is admitted while this is so" in answer.content.decode()
    silent.resume()


@pytest.mark.rule("O1")
def test_pages_without_a_limit_or_with_a_refused_one_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    client = sign_in()
    assert "No physical limit is set" in client.get(PAGE).content.decode()
    monkeypatch.setenv("CONTROLPLANE_FLEET_SECRET", "s")
    assert "CONTROLPLANE_INSTANCE_ID is missing" in client.get(PAGE).content.decode()
    assert Client().get(PAGE).status_code == 302


@pytest.mark.rule("O2", "P10")
def test_reconcile_is_one_verb_asked_for_three_ways(limited: tuple[World, PhysicalSlots]) -> None:
    client = sign_in("operator")
    address = reverse("admin:admission_physicalreport_verb", args=["reconcile-now"])
    shown = client.get(address)
    assert shown.status_code == 200
    token = shown.context["page"].preview.token
    client.post(address, {"reason": "a stuck container", "step": "confirm", "seen": token})
    assert reconcile_number(entitlement()) == 1
    user = User.objects.create_user("op", is_superuser=True)
    _, secret = issue_operator_token(user, "t", actor=SYSTEM)
    headers = {"authorization": f"Bearer {secret}"}
    answer = Client(headers=headers).post("/api/v1/physical/reconcile", {"reason": "again"}, "application/json")
    assert (answer.status_code, answer.json()) == (202, {"request": 2})
    out = StringIO()
    call_command("physical_reconcile", reason="by hand", stdout=out)
    assert "request 3" in out.getvalue()
    entries = AuditEntry.objects.filter(verb="reconcile").order_by("id")
    assert [(e.reason, e.after) for e in entries] == [
        ("a stuck container", {"request": 1}),
        ("again", {"request": 2}),
        ("by hand", {"request": 3}),
    ]
    report_pass(entitlement(), PassReport("replica-1", "harbour", reconcile_seen=2))
    assert "has not made the pass" in client.get(PAGE).content.decode()
    report_pass(entitlement(), PassReport("replica-1", "harbour", reconcile_seen=3))
    assert "has not made the pass" not in client.get(PAGE).content.decode()


@pytest.mark.rule("O2")
def test_reconcile_needs_its_own_permission_a_reason_and_a_limit(
    limited: tuple[World, PhysicalSlots], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = reverse("admin:admission_physicalreport_verb", args=["reconcile-now"])
    assert sign_in("viewer").get(address).status_code == 403
    with pytest.raises(InvalidInput):
        reconcile_now(actor=ANNA, reason=" ")
    monkeypatch.delenv("CONTROLPLANE_RUN_LIMIT")
    with pytest.raises(Conflict, match="No physical limit"):
        reconcile_now(actor=ANNA, reason="why")
    with pytest.raises(CommandError, match="No physical limit"):
        call_command("physical_reconcile", reason="why")
    assert not AuditEntry.objects.filter(verb="reconcile").exists()


@pytest.mark.rule("O3")
def test_rest_and_the_command_tell_the_same(limited: tuple[World, PhysicalSlots]) -> None:
    report_pass(entitlement(), PassReport("replica-1", "harbour", running=1))
    user = User.objects.create_user("op", is_superuser=True)
    _, secret = issue_operator_token(user, "t", actor=SYSTEM)
    answer = Client(headers={"authorization": f"Bearer {secret}"}).get("/api/v1/physical")
    assert answer.status_code == 200
    told = answer.json()
    out = StringIO()
    call_command("slots", json=True, stdout=out)
    printed = json.loads(out.getvalue())
    assert told["counts"] == printed["counts"] == {"waiting": 1, "reserved": 0, "running": 1, "recovering": 1}
    assert [h["run"] for h in told["holders"]] == ["12/1", "13/2"]
    assert told["processes"][0]["containers_running"] == 1
    assert told["config"]["limit"] == told["limit"] == 2
    out = StringIO()
    call_command("slots", stdout=out)
    assert "limit 2 (generation 0): 0 reserved, 1 running, 1 recovering; 1 waiting" in out.getvalue()


@pytest.mark.rule("O3")
def test_tenants_and_strangers_see_no_slots(
    limited: tuple[World, PhysicalSlots], make_tenant: Callable[..., Any]
) -> None:
    from admission.services.tenants import issue_token  # noqa: PLC0415 - only here

    _, secret = issue_token(make_tenant(), "t", actor=SYSTEM)
    assert Client(headers={"authorization": f"Bearer {secret}"}).get("/api/v1/physical").status_code == 403
    assert Client().get("/api/v1/physical").status_code == 401


@pytest.mark.rule("P12")
def test_the_command_fails_on_lockdown_drift_and_silence(limited: tuple[World, PhysicalSlots]) -> None:
    _, slots = limited
    slots.set_lockdown("a container without a slot")
    err = StringIO()
    with pytest.raises(SystemExit):
        call_command("slots", stdout=StringIO(), stderr=err)
    assert "LOCKDOWN" in err.getvalue()
    with override_settings(REDIS_URL=""), pytest.raises(CommandError, match="E061"):
        call_command("slots", stdout=StringIO(), stderr=err)


@pytest.mark.rule("P15", "O4")
def test_metrics_are_separate_and_absent_without_a_limit(
    limited: tuple[World, PhysicalSlots], monkeypatch: pytest.MonkeyPatch
) -> None:
    def numbers() -> dict[str, Any]:
        return {m.name: {**{str(v.labels): v.value for v in m.values}} for m in collect() if "physical" in m.name}

    found = numbers()
    states = found["physical_slots"]
    assert [states[str({"state": s})] for s in ("waiting", "reserved", "running", "recovering")] == [1, 0, 1, 1]
    assert list(found["physical_limit"].values()) == [2]
    with override_settings(REDIS_URL=f"redis://127.0.0.1:{free_port()}"):
        away = numbers()
    assert list(away["physical_readable"].values()) == [0]
    assert away["physical_slots"] == {}
    monkeypatch.delenv("CONTROLPLANE_RUN_LIMIT")
    assert not any(numbers().values())


def test_reports_of_processes_that_are_gone_are_forgotten(limited: tuple[World, PhysicalSlots]) -> None:
    report_pass(entitlement(), PassReport("gone", "harbour"))
    PhysicalReport.objects.update(reported_at="2020-01-01T00:00:00Z")
    report_pass(entitlement(), PassReport("here", "harbour"))
    assert [r.process for r in PhysicalReport.objects.all()] == ["here"]
    service.forget_reports(entitlement(), "here")
    assert not PhysicalReport.objects.exists()


@pytest.mark.rule("P3")
@pytest.mark.parametrize(
    ("environment", "redis_url", "ids"),
    [
        ({}, "", []),
        ({"RUN_LIMIT": "3", "INSTANCE_ID": "acme"}, "redis://x", []),
        ({"RUN_LIMIT": "3", "INSTANCE_ID": "acme"}, "", ["controlplane.E061"]),
        ({"RUN_LIMIT": "3"}, "redis://x", ["controlplane.E060"]),
        ({"RUN_LIMIT": "none"}, "redis://x", ["controlplane.E060", "controlplane.E060"]),
        ({"FLEET_SECRET": ""}, "redis://x", ["controlplane.E060", "controlplane.E060"]),
        ({"WORKER_CONCURRENCY": "6"}, "", ["controlplane.W060"]),
    ],
)
def test_servers_refuse_to_start_on_what_would_refuse_execution(
    environment: dict[str, str], redis_url: str, ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(f"CONTROLPLANE_{name}", value)
    with override_settings(REDIS_URL=redis_url):
        found = check_physical()
    assert [message.id for message in found] == ids
    assert all(isinstance(message, checks.CheckMessage) and message.hint for message in found)


@pytest.mark.rule("P12", "O1")
def test_lost_data_are_told_with_what_to_do_until_the_instance_is_drained(
    limited: tuple[World, PhysicalSlots], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "RETRY_SECONDS", 0.0)
    world, slots = limited
    report_pass(entitlement(), PassReport("replica-1", "harbour", running=1))
    for key in world.keys.all:
        world.server.client.delete(key)
    world.shelf.containers["left"] = container_id()
    world.shelf.stuck.add("left")
    # A pass: the data are gone, and what is left cannot be removed. Forgotten at the first script, told at the next.
    slots.acquire(new_token(), "replica-1")
    with pytest.raises(NotVerified) as refused:
        slots.ensure_verified()
    for told in (
        "Redis has lost the slots of this instance",
        "cannot be removed",
        "docker rm -f",
        "goes on by itself",
    ):
        assert told in str(refused.value)
    report_pass(entitlement(), PassReport("replica-1", "harbour", running=1, error=str(refused.value)))
    client = sign_in("viewer")
    _, secret = issue_operator_token(User.objects.get(), name="t", actor=ANNA)
    page = client.get(PAGE).content.decode()
    answer = Client().get("/api/v1/physical", headers={"authorization": f"Bearer {secret}"}).json()
    with pytest.raises(SystemExit):
        call_command("slots")
    for shown in (page, json.dumps(answer), capsys.readouterr().err):
        assert "Redis holds nothing of this instance: its data were lost" in shown
        assert "the latest pass found 1" in shown
    assert "Redis has lost the slots of this instance" in page
    world.shelf.stuck.clear()
    slots.ensure_verified()
    assert read_slots().drift == ()
