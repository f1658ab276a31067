"""Verbs of the admin: permission, reason, preview, exact count, one service call, audit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission
from django.test import Client
from django.urls import reverse

from admission.models import ApiToken, Counter, Permit, Run, Tenant
from controlplane.admin_base import verbs as machinery
from controlplane.core.models import AuditEntry
from controlplane.core.tokens import token_hash
from controlplane.roles import ROLES, take_back
from recovery.models import Replica
from runners.models import EnrolmentToken, Runner, Secret
from tests import ledger
from tests.admin import world as worlds

REASON = "because a test says so"


def verb(model: type[Any], name: str) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_verb", args=[name])


def confirm(client: Client, model: type[Any], what: str, *rows: Any, seen: str = "", **fields: object) -> Any:
    """Post the confirmation page as a browser would that shows `seen`."""
    body = {"ids": ",".join(str(r.pk) for r in rows), "step": "confirm", "seen": seen, "reason": REASON, **fields}
    return client.post(verb(model, what), body, follow=True)


def token_of(client: Client, model: type[Any], what: str, *rows: Any, **fields: object) -> str:
    """What the page is bound to after the preview."""
    body = {"ids": ",".join(str(r.pk) for r in rows), "step": "preview", "reason": REASON, **fields}
    page = client.post(verb(model, what), body).context["page"]
    return str(page.preview.token)


def said(response: Any) -> str:
    return " ".join(str(m) for m in response.context["messages"])


def last_audit() -> AuditEntry:
    entry = AuditEntry.objects.order_by("-id").first()
    assert entry is not None
    return entry


VERBS = [
    (Run, "cancel"),
    (Run, "requeue"),
    (Permit, "force-release"),
    (Tenant, "set-quota"),
    (Tenant, "remove-quota"),
    (Tenant, "pause"),
    (Tenant, "resume"),
    (Tenant, "issue-token"),
    (Tenant, "delete"),
    (Counter, "set-limit"),
    (Counter, "set-harness-capacity"),
    (ApiToken, "revoke"),
    (Replica, "drain"),
    (Replica, "resume"),
    (Runner, "pause"),
    (Runner, "drain"),
    (Runner, "resume"),
    (Runner, "revoke"),
    (EnrolmentToken, "issue"),
    (EnrolmentToken, "revoke"),
    (Secret, "set"),
    (Secret, "change"),
]


@pytest.mark.rule("O2")
@pytest.mark.parametrize(("model", "name"), VERBS, ids=lambda v: getattr(v, "__name__", v))
def test_a_viewer_gets_403_and_nothing_happens(
    model: type[Any], name: str, world: dict[str, Any], sign_in: Callable[..., Client]
) -> None:
    viewer, before = sign_in("viewer"), AuditEntry.objects.count()
    row = model.objects.first()
    assert viewer.get(verb(model, name), {"ids": row.pk}).status_code == 403
    assert viewer.post(verb(model, name), {"ids": row.pk, "step": "confirm", "reason": REASON}).status_code == 403
    changelist = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")
    posted = {"action": f"verb_{name}", "_selected_action": row.pk, "index": "0"}
    assert viewer.post(changelist, posted).status_code == 403
    assert AuditEntry.objects.count() == before
    page = viewer.get(changelist)
    assert page.status_code == 200
    assert "verb/" not in page.content.decode().replace("/verb/issue/", "verb/" if name == "issue" else "")


@pytest.mark.rule("O2")
@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        ("operator", {"cancel", "requeue", "force-release", "pause", "resume", "drain"}),
        ("quota manager", {"set-quota", "remove-quota", "set-limit", "set-harness-capacity"}),
        ("admin", {name for _, name in VERBS}),
    ],
)
def test_roles_may_exactly_their_verbs(
    role: str, allowed: set[str], world: dict[str, Any], sign_in: Callable[..., Client]
) -> None:
    client = sign_in(role)
    answers = {name: client.get(verb(m, name), {"ids": m.objects.first().pk}).status_code for m, name in VERBS}
    granted = {name for name, status in answers.items() if status == 200}
    # "revoke" and "issue" exist for several kinds; the table above names them once.
    assert granted == allowed


def test_the_migration_installed_the_roles_with_every_permission(sign_in: Callable[..., Client]) -> None:
    for name, verbs in ROLES.items():
        held = {
            f"{app}.{code}"
            for app, code in Group.objects.get(name=name).permissions.values_list(
                "content_type__app_label", "codename"
            )
        }
        assert set(verbs) <= held
        assert "admission.view_run" in held
    ours = Permission.objects.filter(content_type__app_label__in=("admission", "recovery", "runners"))
    own = {f"{app}.{code}" for app, code in ours.values_list("content_type__app_label", "codename")}
    custom = {p for p in own if not p.split(".")[1].startswith(("add_", "change_", "delete_", "view_"))}
    assert custom <= set(ROLES["admin"])


def test_no_role_may_have_any_function_called_by_a_schedule(sign_in: Callable[..., Client]) -> None:
    sign_in()
    kinds = {"content_type__app_label": "django_q"}
    admins = Group.objects.get(name="admin")
    for codename in ("add_schedule", "change_schedule"):
        admins.permissions.add(Permission.objects.get(codename=codename, **kinds))
    own = Group.objects.create(name="of this house alone")
    own.permissions.add(Permission.objects.get(codename="add_schedule", **kinds))
    take_back(Group, Permission)
    assert set(admins.permissions.filter(**kinds).values_list("codename", flat=True)) >= {"delete_schedule"}
    assert not admins.permissions.filter(codename__in=("add_schedule", "change_schedule")).exists()
    assert own.permissions.filter(codename="add_schedule").exists()
    add = reverse("admin:django_q_schedule_add")
    assert sign_in("admin").get(add).status_code == 403


def test_a_verb_needs_a_reason(world: dict[str, Any], admin: Client) -> None:
    run = Run.objects.filter(state="queued").first()
    response = confirm(admin, Run, "cancel", run, reason="  ")
    assert "required" in response.content.decode()
    assert ledger.state(run.pk) == "queued"  # type: ignore[union-attr]


def test_nothing_happens_by_get_or_before_the_confirmation(world: dict[str, Any], admin: Client) -> None:
    run = Run.objects.filter(state="queued").first()
    assert run is not None
    admin.get(verb(Run, "cancel"), {"ids": run.pk, "step": "confirm", "reason": REASON})
    admin.post(verb(Run, "cancel"), {"ids": run.pk, "step": "preview", "reason": REASON})
    assert ledger.state(run.pk) == "queued"


def test_cancel_of_many_states_the_exact_count_and_reports_each_result(world: dict[str, Any], admin: Client) -> None:
    acme = Run.objects.filter(tenant=world["acme"])
    queued, live = (
        list(acme.filter(state="queued")[:3]),
        list(acme.filter(state="running", cancel_requested_at__isnull=True)[:1]),
    )
    ended = list(acme.filter(state="succeeded")[:1])
    rows = [*queued, *live, *ended]
    chosen = {"action": "verb_cancel", "_selected_action": [r.pk for r in rows], "index": "0"}
    page = admin.post(reverse("admin:admission_run_changelist"), chosen)
    content = page.content.decode()
    assert f"Cancel: {len(rows)} runs" in content
    assert f"{len(rows)} of acme." in content
    response = confirm(admin, Run, "cancel", *rows)
    assert said(response) == f"Of 5 runs: {len(queued)} cancelled, {len(live)} asked to stop, {len(ended)} had ended."
    assert {ledger.state(r.pk) for r in queued} == {"cancelled"}
    entry = AuditEntry.objects.get(verb="cancel", subject=str(queued[0].pk))
    assert (entry.reason, entry.request_id != "") == (REASON, True)
    assert entry.actor == response.wsgi_request.user.get_username()
    assert not AuditEntry.objects.filter(verb="cancel", subject=str(ended[0].pk)).exists()
    ledger.assert_conserved()


def test_a_selection_above_the_cap_is_done_in_parts(
    world: dict[str, Any], admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machinery, "CAP", 4)
    total = Run.objects.count()
    everything = {"action": "verb_cancel", "_selected_action": ["1"], "select_across": "1", "index": "0"}
    page = admin.post(reverse("admin:admission_run_changelist"), everything)
    assert len(page.context["page"].objects) == 4
    assert f"{total} are selected; this does the oldest 4 of them." in page.content.decode()


def test_requeue_takes_a_run_over_and_audits_it(world: dict[str, Any], admin: Client) -> None:
    run = Run.objects.filter(state="running", cancel_requested_at__isnull=True).first()
    assert run is not None
    page = admin.get(verb(Run, "requeue"), {"ids": run.pk}).content.decode()
    assert "until then it may run twice" in page
    assert "last heard" in page
    confirm(admin, Run, "requeue", run)
    assert ledger.state(run.pk) == "queued"
    assert ledger.run(run.pk).epoch > run.epoch
    assert (last_audit().verb, last_audit().subject, last_audit().reason) == ("requeue", str(run.pk), REASON)
    ledger.assert_conserved()


@pytest.mark.rule("A15")
def test_a_quota_is_previewed_then_set_by_the_service(world: dict[str, Any], admin: Client) -> None:
    acme = world["acme"]
    fields = {"limit": "1"}
    in_use = ledger.in_flight(acme)
    page = admin.post(
        verb(Tenant, "set-quota"), {"ids": acme.pk, "step": "preview", "reason": REASON, **fields}
    ).content.decode()
    assert f"{in_use} in use, new limit 1: {in_use - 1} over, nothing is killed." in page
    assert ledger.counter(acme).limit == 4
    seen = token_of(admin, Tenant, "set-quota", acme, **fields)
    confirm(admin, Tenant, "set-quota", acme, seen=seen, **fields)
    assert ledger.counter(acme).limit == 1
    assert ledger.in_flight(acme) == in_use
    assert last_audit().before == {"quota": 4}
    assert last_audit().reason == REASON


def test_a_quota_changed_by_somebody_else_meanwhile_is_shown_again(world: dict[str, Any], admin: Client) -> None:
    acme = world["acme"]
    seen = token_of(admin, Tenant, "set-quota", acme, limit="9")
    worlds.set_quota(acme, 7, actor=worlds.ANNA)
    response = confirm(admin, Tenant, "set-quota", acme, seen=seen, limit="9")
    assert "not what stands now" in response.content.decode()
    assert ledger.counter(acme).limit == 7


def test_another_limit_than_the_previewed_one_is_shown_again(world: dict[str, Any], admin: Client) -> None:
    seen = token_of(admin, Tenant, "set-quota", world["acme"], limit="9")
    confirm(admin, Tenant, "set-quota", world["acme"], seen=seen, limit="90")
    assert ledger.counter(world["acme"]).limit == 4


@pytest.mark.parametrize("limit", ["-1", "1.5", "x", "", "99999999999"])
def test_a_wrong_limit_is_refused_beside_its_field(limit: str, world: dict[str, Any], admin: Client) -> None:
    body = {"ids": world["acme"].pk, "step": "preview", "reason": REASON, "limit": limit}
    page = admin.post(verb(Tenant, "set-quota"), body)
    assert page.context["form"].errors["limit"]


def test_removing_a_quota_touches_no_run(world: dict[str, Any], admin: Client) -> None:
    acme = world["acme"]
    before = list(Run.objects.filter(tenant=acme).values_list("pk", "state", "epoch"))
    seen = token_of(admin, Tenant, "remove-quota", acme)
    confirm(admin, Tenant, "remove-quota", acme, seen=seen)
    acme.refresh_from_db()
    assert not acme.has_quota
    assert list(Run.objects.filter(tenant=acme).values_list("pk", "state", "epoch")) == before
    ledger.assert_conserved()


def test_pause_and_resume(world: dict[str, Any], admin: Client) -> None:
    acme = world["acme"]
    confirm(admin, Tenant, "pause", acme, resume_at="2999-01-01T00:00")
    acme.refresh_from_db()
    assert acme.paused_at is not None
    assert acme.resume_at.year == 2999
    assert ledger.counter(acme).paused
    response = confirm(admin, Tenant, "resume", acme)
    assert said(response).startswith("Resumed 1 tenant.")
    assert not ledger.counter(acme).paused


def test_a_resume_time_in_the_past_is_refused(world: dict[str, Any], admin: Client) -> None:
    response = confirm(admin, Tenant, "pause", world["acme"], resume_at="2001-01-01T00:00")
    assert "in the past" in response.content.decode()


def test_force_release_is_a_takeover_and_typed(world: dict[str, Any], admin: Client) -> None:
    permit = Permit.objects.filter(run__isnull=False).first()
    assert permit is not None
    assert "Type release" in confirm(admin, Permit, "force-release", permit, word="no").content.decode()
    assert Permit.objects.filter(pk=permit.pk).exists()
    response = confirm(admin, Permit, "force-release", permit, word="release")
    assert said(response) == "Took over 1 run, released 0 outside permits."
    assert not Permit.objects.filter(pk=permit.pk).exists()
    assert ledger.state(permit.run_id) == "queued"  # type: ignore[arg-type]
    ledger.assert_conserved()


def test_force_release_of_an_outside_permit_is_audited(world: dict[str, Any], admin: Client) -> None:
    permit = Permit.objects.get(holder="ext:warehouse-7")
    confirm(admin, Permit, "force-release", permit, word="release")
    assert not Permit.objects.filter(pk=permit.pk).exists()
    assert (last_audit().verb, last_audit().subject, last_audit().reason) == (
        "force_release",
        "ext:warehouse-7",
        REASON,
    )
    ledger.assert_conserved()


def test_a_token_is_shown_once_and_revoked(world: dict[str, Any], admin: Client) -> None:
    page = confirm(admin, Tenant, "issue-token", world["acme"], name="a new one", expires_at="")
    secret = page.context["secret"]
    assert "no-store" in page["Cache-Control"]
    token = ApiToken.objects.get(name="a new one")
    assert bytes(token.hash) == token_hash(secret)
    confirm(admin, ApiToken, "revoke", token)
    token.refresh_from_db()
    assert token.revoked_at is not None
    assert last_audit().verb == "revoke_token"
    assert AuditEntry.objects.filter(verb="issue_token", subject="acme").latest("pk").reason == REASON
    unsaid = confirm(admin, Tenant, "issue-token", world["acme"], name="another", expires_at="", reason="")
    assert "reason" in unsaid.context["page"].form.errors


@pytest.mark.rule("O2")
def test_a_refusal_midway_says_what_was_done_before_it(world: dict[str, Any], admin: Client) -> None:
    gone, kept = ledger.make_tenant(slug="a-gone"), ledger.make_tenant(slug="b-kept")
    ledger.submit(kept, 1)
    last = ledger.make_tenant(slug="c-untouched")
    page = confirm(admin, Tenant, "delete", gone, kept, last, drain="")
    (error,) = page.context["page"].form.non_field_errors()
    assert error.startswith("1 of 3 done; then, at b-kept: Tenant 'b-kept' has 1 runs that have not ended"), error
    assert [tenant.slug for tenant in Tenant.objects.filter(pk__in=(gone.pk, kept.pk, last.pk)).order_by("pk")] == [
        "b-kept",
        "c-untouched",
    ]
    assert AuditEntry.objects.filter(verb="delete").count() == 1


def test_an_enrolment_token_is_shown_once(world: dict[str, Any], admin: Client) -> None:
    page = confirm(admin, EnrolmentToken, "issue", name="new rack", uses="2", hours="3", tenant="acme")
    token = EnrolmentToken.objects.get(name="new rack")
    assert bytes(token.hash) == token_hash(page.context["secret"])
    assert (token.uses_left, token.tenant) == (2, world["acme"])


def test_replicas_drain_and_resume(world: dict[str, Any], admin: Client) -> None:
    north = world["north"]
    confirm(admin, Replica, "drain", north)
    north.refresh_from_db()
    assert (north.draining_at is not None, north.drain_note) == (True, REASON)
    confirm(admin, Replica, "resume", north)
    north.refresh_from_db()
    assert north.draining_at is None


def test_a_revoked_runner_loses_its_runs(world: dict[str, Any], admin: Client) -> None:
    runner = Runner.objects.get(name="lab-rack-1")
    held = Run.objects.filter(driver_kind="runner", driver_id=runner.pk, state="running").count()
    response = confirm(admin, Runner, "revoke", runner)
    assert f"{held} runs taken" in said(response)
    assert not Run.objects.filter(driver_kind="runner", driver_id=runner.pk, state="running").exists()


def test_a_refusal_of_the_service_is_said_on_the_page(world: dict[str, Any], admin: Client) -> None:
    page = admin.get(verb(Tenant, "delete"), {"ids": world["acme"].pk})
    assert page.status_code == 200
    response = confirm(admin, Tenant, "delete", world["acme"])
    assert "runs that have not ended" in response.content.decode()
    assert Tenant.objects.filter(slug="acme").exists()


def test_a_tenant_is_made_and_changed_by_services_and_no_counter_is_saved(admin: Client) -> None:
    admin.post(reverse("admin:admission_tenant_add"), {"slug": "newcomer", "name": "New", "weight": "1.5"})
    tenant = Tenant.objects.get(slug="newcomer")
    assert last_audit().verb == "create"
    Counter.objects.filter(tenant=tenant).update(in_flight=3)
    change = reverse("admin:admission_tenant_change", args=[tenant.pk])
    admin.post(change, {"name": "Renamed", "weight": "2", "queue_depth": "10", "has_quota": "on"})
    tenant.refresh_from_db()
    assert (tenant.name, tenant.queue_depth, tenant.has_quota) == ("Renamed", 10, False)
    assert ledger.in_flight(tenant) == 3
    assert set(last_audit().after or {}) == {"name", "weight", "queue_depth"}


@pytest.mark.parametrize("slug", ["Upper", "-x", "x-", "a_b"])
def test_a_slug_that_the_service_would_refuse_is_refused_in_the_form(slug: str, admin: Client) -> None:
    page = admin.post(reverse("admin:admission_tenant_add"), {"slug": slug, "weight": "1"})
    assert page.status_code == 200
    assert page.context["adminform"].form.errors["slug"]


@pytest.mark.parametrize("ids", ["x", "1,2,x", "-1", "1" * 30])
def test_a_malformed_selection_is_not_found(ids: str, world: dict[str, Any], admin: Client) -> None:
    assert admin.get(verb(Run, "cancel"), {"ids": ids}).status_code == 404


def test_the_way_back_never_leaves_the_site(world: dict[str, Any], admin: Client) -> None:
    run = Run.objects.filter(state="queued").first()
    page = admin.get(verb(Run, "cancel"), {"ids": run.pk, "next": "https://elsewhere.example/"})  # type: ignore[union-attr]
    assert page.context["back"] == reverse("admin:admission_run_changelist")


@pytest.mark.rule("A20", "O2")
def test_a_harness_gets_its_capacity_from_the_list_and_a_key_its_limit_from_its_row(
    world: dict[str, Any], admin: Client
) -> None:
    done = confirm(admin, Counter, "set-harness-capacity", name="tank", limit="3")
    assert "Harness tank: 0 in use, limit 3." in said(done)
    tank = Counter.objects.get(scope="harness", key="tank")
    seen = token_of(admin, Counter, "set-limit", tank, limit="2")
    assert "limit 2" in said(confirm(admin, Counter, "set-limit", tank, seen=seen, limit="2"))
    tank.refresh_from_db()
    assert tank.limit == 2
    entry = last_audit()
    assert (entry.verb, entry.subject, entry.reason, entry.before) == ("set_limit", "tank", REASON, {"limit": 3})
    tenant = Counter.objects.filter(scope="tenant").first()
    seen = token_of(admin, Counter, "set-limit", tenant, limit="2")
    refused = confirm(admin, Counter, "set-limit", tenant, seen=seen, limit="2")
    assert "its quota" in refused.content.decode()


@pytest.mark.rule("A26", "O2")
def test_a_tenant_with_live_work_is_refused_or_drained(world: dict[str, Any], admin: Client) -> None:
    cargo = world["cargo"]
    assert "not ended" in confirm(admin, Tenant, "delete", cargo).content.decode()
    assert "takes no more work" in said(confirm(admin, Tenant, "delete", cargo, drain="on"))
    cargo.refresh_from_db()
    assert cargo.deleting_at is not None
    assert not Run.objects.filter(tenant=cargo, state="queued").exists()
