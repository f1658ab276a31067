"""Every page of the admin loads with rows present, costs the same for many rows as for few, and tells no secret."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib import admin as django_admin
from django.contrib.auth.models import Group, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone
from django_q.models import Failure, OrmQ, Schedule, Success, Task

from admission.models import ApiToken, Attempt, Batch, Counter, Permit, PhysicalReport, Run, Tenant
from admission.services.permits import claim_permit
from admission.services.tenants import issue_token
from controlplane.core.audit import record
from controlplane.core.models import AuditEntry
from leadership.models import Fire, Intent, Lease, LoopSeen, Term
from recovery.models import RecoveryAction, RecoveryClaim, RecoveryDebt, Replica
from runners.models import EnrolmentToken, Runner, Secret
from runners.services.enrolment import issue_enrolment_token
from runners.services.secrets import set_secret
from tests.admin import world as worlds
from tests.admin.world import ANNA, SECRET

OURS = (
    Tenant,
    ApiToken,
    Batch,
    Run,
    Counter,
    Permit,
    PhysicalReport,
    Replica,
    RecoveryClaim,
    RecoveryAction,
    RecoveryDebt,
    Runner,
    EnrolmentToken,
    Secret,
    AuditEntry,
    Lease,
    Term,
    LoopSeen,
    Fire,
    Intent,
)
SKINNED = (User, Group, Success, Failure, Schedule, OrmQ)


def address(model: type[Any], page: str, *args: object) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{page}", args=args)


def make_tasks() -> None:
    now = timezone.now()
    for n, success in enumerate((True, False)):
        Task.objects.create(
            id=f"{n:032x}",
            name=f"task {n}",
            func="math.floor",
            started=now,
            stopped=now,
            success=success,
            result="done",
        )
    Schedule.objects.create(name="sweep", func="math.floor")
    OrmQ.objects.create(key="wharfinger", payload="", lock=now)


def test_every_model_has_a_page() -> None:
    registered = {m for m in django_admin.site._registry if m._meta.app_label != "contenttypes"}
    assert registered == {*OURS, *SKINNED}


@pytest.mark.parametrize("model", [*OURS, *SKINNED], ids=lambda m: m.__name__)
def test_list_page_and_add_page_load_with_rows_present(model: type[Any], world: dict[str, Any], admin: Client) -> None:
    make_tasks()
    model_admin = django_admin.site._registry[model]
    assert admin.get(address(model, "changelist")).status_code == 200
    row = model_admin.model._default_manager.first()
    if model is OrmQ:
        return  # its own page decodes the signed payload of a real task
    assert row is not None
    assert admin.get(address(model, "change", row.pk)).status_code == 200
    request = admin.get(address(model, "changelist")).wsgi_request
    expected = 200 if model_admin.has_add_permission(request) else 403
    assert admin.get(address(model, "add")).status_code == expected


@pytest.mark.parametrize("model", OURS, ids=lambda m: m.__name__)
def test_nothing_of_ours_is_added_or_deleted_by_hand(model: type[Any], world: dict[str, Any], admin: Client) -> None:
    row = model._default_manager.first()
    assert admin.get(address(model, "delete", row.pk)).status_code == 403
    if model is not Tenant:
        assert admin.post(address(model, "change", row.pk), {}).status_code == 403


def a_runner(n: int, tenant: Tenant) -> None:
    Runner.objects.create(name=f"r{n}", shown="x", hash=n.to_bytes(32, "big"), labels={"a": "b"}, tenant=tenant)


def a_user(n: int) -> None:
    User.objects.create_user(f"user-{n}").groups.add(*Group.objects.all()[:1])


def a_claim(n: int) -> None:
    RecoveryClaim.objects.create(replica=worlds.replica(f"more-{n}"), claimant="x")


GROW: dict[type[Any], Callable[[int, Tenant], object]] = {
    Tenant: lambda n, t: worlds.create_tenant(f"more-{n}", actor=ANNA),
    ApiToken: lambda n, t: issue_token(t, f"token {n}", actor=ANNA),
    Batch: lambda n, t: Batch.objects.create(tenant=t, name=f"batch {n}"),
    Run: lambda n, t: worlds.submit(t, 1, first=1000 + n, batch=f"b{n}"),
    Counter: lambda n, t: Counter.objects.create(scope="key", key=f"{t.pk}:k{n}", tenant=t, limit=1),
    Permit: lambda n, t: claim_permit(f"ext:{n}", tenant_id=t.pk),
    Replica: lambda n, t: worlds.replica(f"more-{n}"),
    RecoveryClaim: lambda n, t: a_claim(n),
    RecoveryAction: lambda n, t: RecoveryAction.objects.create(by="x", replica_name="y", run_id=n, outcome="requeued"),
    Runner: a_runner,
    EnrolmentToken: lambda n, t: issue_enrolment_token(actor=ANNA, name=f"e{n}", tenant=t),
    Secret: lambda n, t: set_secret(t, f"SECRET_{n}", "a value of some length", actor=ANNA),
    AuditEntry: lambda n, t: record("change", "tenant", "acme", actor=ANNA, before={"a": 1}, after={"a": 2}),
    User: lambda n, t: a_user(n),
    Group: lambda n, t: Group.objects.create(name=f"group {n}"),
}


@pytest.mark.parametrize("model", GROW, ids=lambda m: m.__name__)
def test_a_list_costs_as_many_statements_for_30_more_rows(
    model: type[Any], world: dict[str, Any], admin: Client
) -> None:
    for n in range(5):
        GROW[model](n, world["cargo"])
    page = address(model, "changelist")
    admin.get(page)
    with CaptureQueriesContext(
        connection,
    ) as few:
        admin.get(page)
    for n in range(5, 35):
        GROW[model](n, world["cargo"])
    with CaptureQueriesContext(connection) as many:
        shown = admin.get(page).context["cl"].result_count
    assert shown >= 30
    assert len(many) == len(few), [q["sql"] for q in many]
    assert len(many) <= 10


def test_a_run_page_shows_names_of_environment_variables_and_no_value(world: dict[str, Any], admin: Client) -> None:
    run = Run.objects.filter(state="running").first()
    assert run is not None
    page = admin.get(address(Run, "change", run.pk)).content.decode()
    assert "API_KEY" in page
    assert SECRET not in page
    assert "text, 300 characters" in page
    assert "print(&#x27;hello" not in page


def test_no_list_shows_a_token_or_its_hash(world: dict[str, Any], admin: Client) -> None:
    token, secret = issue_token(world["acme"], "another", actor=ANNA)
    for page in (address(ApiToken, "changelist"), address(ApiToken, "change", token.pk)):
        content = admin.get(page).content.decode()
        assert token.shown in content
        assert secret not in content


@pytest.mark.parametrize("model", [Run, Fire])
@pytest.mark.parametrize("query", ["state=%00", "state__exact=%00", "q=%00"])
def test_a_filter_that_no_row_can_match_is_no_error(
    model: type[Any], query: str, world: dict[str, Any], admin: Client
) -> None:
    path = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")
    assert admin.get(f"{path}?{query}", follow=True).status_code == 200


def test_runs_are_found_by_id_key_and_name(world: dict[str, Any], admin: Client) -> None:
    run = Run.objects.filter(tenant=world["acme"]).order_by("pk").last()
    assert run is not None
    for term in (str(run.pk), f"#{run.pk}", run.idempotency_key):
        listed = admin.get(address(Run, "changelist"), {"q": term}).context["cl"].result_list
        assert [found.pk for found in listed] == [run.pk]
    named = admin.get(address(Run, "changelist"), {"q": "HumanEval/1"}).context["cl"].result_list
    names = {found.name for found in named}
    assert {"HumanEval/1", "HumanEval/10"} <= names
    assert all(name.startswith("HumanEval/1") for name in names)


@pytest.mark.parametrize(
    "query",
    [
        {"state__exact": "running"},
        {"tenant__id__exact": "1"},
        {"driver_kind__exact": "replica", "driver_id": "1"},
        {"kind": "task"},
        {"batch__id__exact": "1"},
    ],
)
def test_runs_are_filtered_by_address(query: dict[str, str], world: dict[str, Any], admin: Client) -> None:
    known = {
        "tenant__id__exact": str(world["acme"].pk),
        "driver_id": str(world["north"].pk),
        "batch__id__exact": str(Batch.objects.filter(tenant=world["acme"]).values_list("pk", flat=True)[0]),
    }
    asked = {name: known.get(name, value) for name, value in query.items()}
    listed = admin.get(address(Run, "changelist"), asked).context["cl"]
    assert listed.result_count == Run.objects.filter(**asked).count() > 0


@pytest.mark.parametrize("name", ["verb", "actor", "subject_type"])
def test_the_audit_log_is_filtered_by_the_values_that_occur(name: str, world: dict[str, Any], admin: Client) -> None:
    values = set(AuditEntry.objects.values_list(name, flat=True))
    response = admin.get(address(AuditEntry, "changelist"))
    spec = next(s for s in response.context["cl"].filter_specs if s.parameter_name == name)
    assert {value for value, _ in spec.lookup_choices} == values
    chosen = min(values)
    listed = admin.get(address(AuditEntry, "changelist"), {name: chosen}).context["cl"].result_list
    assert {getattr(entry, name) for entry in listed} == {chosen}


def test_an_empty_list_says_what_to_do_next(admin: Client) -> None:
    for model in OURS:
        if model is AuditEntry:
            continue
        assert django_admin.site._registry[model].empty_list_hint in admin.get(
            address(model, "changelist")
        ).content.decode().replace("&#x27;", "'")


@pytest.mark.rule("O1")
def test_times_are_written_in_one_way_and_pages_say_of_when_they_are(admin: Client, world: dict[str, Any]) -> None:
    page = admin.get(f"/admin/recovery/replica/{world['north'].pk}/change/").content.decode()
    assert "p.m." not in page
    assert "a.m." not in page
    for address in (f"/admin/recovery/replica/{world['north'].pk}/change/", "/admin/admission/permit/"):
        assert "as of <time" in admin.get(address).content.decode()
    assert "as of <time" not in admin.get("/admin/admission/tenant/add/").content.decode()


@pytest.mark.rule("O1")
def test_a_paused_counter_is_said_in_words(admin: Client, world: dict[str, Any]) -> None:
    page = admin.get("/admin/admission/counter/").content.decode()
    assert page.count("admitting</span>") == 3
    assert page.count("paused</span>") == 1


@pytest.mark.rule("O1")
def test_a_run_with_many_attempts_shows_the_latest_and_says_so(admin: Client, world: dict[str, Any]) -> None:
    run = Run.objects.filter(state="running").first()
    assert run is not None
    first = Attempt.objects.get(run=run)
    for number in range(2, 121):
        Attempt.objects.create(
            run=run, number=number, tenant_id=run.tenant_id, epoch=number, weight=1, driver_kind="replica",
            driver_id=1, admitted_at=first.admitted_at, released_at=first.admitted_at, ending="returned",
        )  # fmt: skip
    Run.objects.filter(pk=run.pk).update(attempt=120)
    page = admin.get(f"/admin/admission/run/{run.pk}/change/").content.decode()
    assert "the latest 100 of 120" in page
