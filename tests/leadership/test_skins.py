"""One verb, three skins: the admin, REST, the command line (rule O2)."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse
from django_q.models import OrmQ

from admission.models import ApiToken
from controlplane.core.models import AuditEntry
from controlplane.core.tokens import OPERATOR, new_token, shown_part, token_hash
from controlplane.roles import install_roles
from leadership.election import LeaderElector
from leadership.execution import execute_fire
from leadership.local import Noted, declare_loops
from leadership.models import Fire, Intent, Lease, LoopSeen, Term
from leadership.registry import get_loop
from leadership.ticker import Ticker

pytestmark = pytest.mark.django_db(transaction=True)

REASON = "because a test says so"


@pytest.fixture(autouse=True)
def fleet(settings: Any) -> LeaderElector:
    settings.STATIC_ROOT = None
    install_roles(Group, Permission)
    OrmQ.objects.all().delete()
    declare_loops()
    elector = LeaderElector("a", "node a")
    elector.tick()
    Ticker(elector.term).tick()
    fire = Fire.objects.get(loop="conservation")
    execute_fire(fire.loop, fire.fire_at, fire.term)
    Noted(get_loop("retention"), "node a", lambda: {"fires": 1})()
    Intent.objects.create(kind="stuck_run", key="1.x", payload={})
    return elector


@pytest.fixture
def sign_in() -> Callable[[str], Client]:
    def sign_in(role: str) -> Client:
        user = User.objects.create_user(role.replace(" ", "-"), is_staff=True)
        user.groups.add(Group.objects.get(name=role))
        client = Client()
        client.force_login(user)
        return client

    return sign_in


def verb(model: type[Any], name: str) -> str:
    return reverse(f"admin:leadership_{model._meta.model_name}_verb", args=[name])


@pytest.mark.rule("O1", "L8")
@pytest.mark.parametrize("model", [Lease, Term, LoopSeen, Fire, Intent])
def test_every_list_and_page_is_shown_to_a_viewer(model: type[Any], sign_in: Callable[[str], Client]) -> None:
    viewer, name = sign_in("viewer"), model._meta.model_name
    page = viewer.get(reverse(f"admin:leadership_{name}_changelist"))
    assert page.status_code == 200
    row = page.context["cl"].result_list[0]
    assert viewer.get(reverse(f"admin:leadership_{name}_change", args=[row.pk])).status_code == 200


@pytest.mark.rule("O1", "L8")
def test_the_pages_say_who_leads_and_what_became_of_each_loop(sign_in: Callable[[str], Client]) -> None:
    viewer = sign_in("viewer")
    leases = viewer.get(reverse("admin:leadership_lease_changelist")).content.decode()
    assert "node a" in leases
    assert "data-left" in leases
    loops = viewer.get(reverse("admin:leadership_loopseen_changelist")).content.decode()
    assert "drifts 0" in loops
    assert "fires 1" in loops


@pytest.mark.rule("O2")
def test_a_viewer_may_neither_step_down_nor_run_a_loop(sign_in: Callable[[str], Client]) -> None:
    viewer, before = sign_in("viewer"), AuditEntry.objects.count()
    for model, name in ((Lease, "step-down"), (LoopSeen, "run-now"), (Intent, "retry")):
        row = model.objects.first()
        body = {"ids": row.pk, "step": "confirm", "reason": REASON}
        assert viewer.post(verb(model, name), body).status_code == 403
    assert AuditEntry.objects.count() == before


@pytest.mark.rule("O2", "L4")
def test_an_operator_steps_the_leader_down_from_the_admin(
    sign_in: Callable[[str], Client], fleet: LeaderElector
) -> None:
    operator, lease = sign_in("operator"), Lease.objects.get()
    body = {"ids": lease.pk, "reason": REASON}
    shown = operator.post(verb(Lease, "step-down"), {**body, "step": "preview"})
    assert "node a leads loops in term 1" in shown.content.decode()
    seen = shown.context["page"].preview.token
    done = operator.post(verb(Lease, "step-down"), {**body, "step": "confirm", "seen": seen}, follow=True)
    assert "Asked to step down: node a (term 1)." in [str(m) for m in done.context["messages"]]
    assert AuditEntry.objects.get(verb="step_down").reason == REASON
    fleet.tick()
    assert fleet.term() is None


@pytest.mark.rule("O2", "L8")
def test_an_operator_runs_a_loop_from_the_admin_and_a_busy_one_is_refused(sign_in: Callable[[str], Client]) -> None:
    operator = sign_in("operator")
    loop = LoopSeen.objects.get(loop="conservation", place="")
    body = {"ids": loop.pk, "step": "confirm", "seen": "", "reason": REASON}
    assert operator.post(verb(LoopSeen, "run-now"), body, follow=True).status_code == 200
    assert Fire.objects.filter(loop="conservation", state="undone").count() == 1
    again = operator.post(verb(LoopSeen, "run-now"), body, follow=True)
    assert "never overlaps" in again.content.decode()


def operator_token(*permissions: str) -> str:
    user = User.objects.create_user(f"api-{User.objects.count()}")
    for name in permissions:
        app, _, codename = name.partition(".")
        user.user_permissions.add(Permission.objects.get(content_type__app_label=app, codename=codename))
    secret = new_token(OPERATOR)
    ApiToken.objects.create(user=user, name="t", hash=token_hash(secret), shown=shown_part(secret))
    return secret


def api(token: str) -> Client:
    return Client(headers={"authorization": f"Bearer {token}"})


@pytest.mark.rule("O2", "O3", "X3")
def test_rest_lists_leases_loops_and_alarms_and_steps_down() -> None:
    seeing = api(operator_token("leadership.view_lease"))
    body = seeing.get("/api/v1/leases").json()
    assert (body["leases"][0]["holder_name"], body["leases"][0]["led"]) == ("node a", True)
    assert {"conservation", "beat"} <= {loop["loop"] for loop in body["loops"]}
    assert body["alarms"] == []
    path, reason = "/api/v1/leases/loops/step-down", json.dumps({"reason": REASON})
    assert seeing.post(path, reason, content_type="application/json").status_code == 403
    acting = api(operator_token("leadership.step_down", "leadership.run_loop"))
    answer = acting.post(path, reason, content_type="application/json")
    assert (answer.status_code, answer.json()["term"]) == (202, 1)
    assert acting.post(path, reason, content_type="application/json").status_code == 409
    assert acting.post(path, "{}", content_type="application/json").status_code in (400, 422)
    assert acting.post("/api/v1/leases/none/step-down", reason, content_type="application/json").status_code == 404
    assert acting.post("/api/v1/loops/conservation/run", reason, content_type="application/json").status_code == 202
    assert acting.post("/api/v1/loops/conservation/run", reason, content_type="application/json").status_code == 409
    assert acting.post("/api/v1/loops/none/run", reason, content_type="application/json").status_code == 404


@pytest.mark.rule("O2")
def test_the_command_line_shows_runs_and_steps_down() -> None:
    out = StringIO()
    call_command("loops", stdout=out)
    assert "loops: term 1, node a" in out.getvalue()
    assert "conservation (leader, every 60 s): done" in out.getvalue()
    call_command("loops", run="conservation", reason=REASON, stdout=StringIO())
    call_command("step_down", reason=REASON, stdout=out)
    assert "Asked node a to end term 1 of loops." in out.getvalue()
    with pytest.raises(CommandError, match="asked to step down already"):
        call_command("step_down", reason=REASON)
    Lease.objects.update(expires_at="2000-01-01T00:00Z")
    with pytest.raises(SystemExit):
        call_command("loops", stdout=StringIO(), stderr=out)
    assert "ALARM Nobody has led" in out.getvalue()


@pytest.mark.rule("L8")
def test_a_local_loop_is_noted_seldom_and_its_failure_at_once() -> None:
    ran = []

    def tick() -> None:
        ran.append(1)
        if len(ran) > 2:
            raise ValueError("broken")

    loop = Noted(get_loop("holds"), "node b", tick)
    loop()
    first = LoopSeen.objects.get(loop="holds", place="node b").last_at
    loop()
    assert LoopSeen.objects.get(loop="holds", place="node b").last_at == first
    with pytest.raises(ValueError, match="broken"):
        loop()
    assert "broken" in LoopSeen.objects.get(loop="holds", place="node b").error
