"""What recovery did, owes and holds: the admin, REST and the command line over the same functions (rules O2, R16)."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from admission.models import ApiToken, Tenant
from controlplane.core.models import AuditEntry
from controlplane.core.tokens import OPERATOR, new_token, shown_part, token_hash
from controlplane.roles import install_roles
from recovery.models import RecoveryDebt, Replica
from recovery.services.orphans import Dead, LeftoversRemain
from recovery.services.reconcile import reconcile
from recovery.services.replicas import replica_driver
from tests import ledger

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("witness")]

REASON = "the daemon is back"


@pytest.fixture
def debt(make_tenant: Callable[..., Tenant], settings: Any) -> RecoveryDebt:
    settings.STATIC_ROOT = None
    install_roles(Group, Permission)
    dead = ledger.make_replica(name="gone")
    ledger.submit(make_tenant())
    ledger.start(replica_driver(dead), ledger.admit_all(replica_driver(dead)))
    Replica.objects.filter(pk=dead.pk).update(beat_at=timezone.now() - timedelta(hours=1))

    def refuses(_: Dead) -> None:
        raise LeftoversRemain("its daemon does not answer")

    reconcile(claimant="c", by="a test", sweep=refuses)
    return RecoveryDebt.objects.get()


def sign_in(role: str) -> Client:
    user = User.objects.create_user(role, is_staff=True)
    user.groups.add(Group.objects.get(name=role))
    client = Client()
    client.force_login(user)
    return client


def operator_token(role: str) -> dict[str, Any]:
    user = User.objects.create_user(f"api {role}", is_staff=True)
    user.groups.add(Group.objects.get(name=role))
    secret = new_token(OPERATOR)
    ApiToken.objects.create(user=user, name="t", shown=shown_part(secret), hash=token_hash(secret))
    return {"HTTP_AUTHORIZATION": f"Bearer {secret}"}


def is_due(debt: RecoveryDebt) -> bool:
    debt.refresh_from_db()
    return debt.next_at <= timezone.now()


@pytest.mark.rule("O2", "R9")
def test_a_debt_is_looked_at_now_by_the_admin_with_permission_and_reason(debt: RecoveryDebt) -> None:
    address = reverse("admin:recovery_recoverydebt_verb", args=["retry"])
    body = {"ids": debt.pk, "step": "confirm", "reason": REASON, "seen": ""}
    assert sign_in("viewer").post(address, body).status_code == 403
    operator = sign_in("operator")
    assert operator.post(address, {**body, "reason": ""}).context["form"].errors["reason"]
    assert not is_due(debt)
    assert operator.post(address, body).status_code == 302
    assert is_due(debt)
    entry = AuditEntry.objects.get(verb="retry", subject_type="recovery debt")
    assert (entry.subject, entry.reason, entry.actor) == (str(debt.pk), REASON, "operator")
    page = operator.get(reverse("admin:recovery_recoverydebt_changelist"), {"standing": "open"}).content.decode()
    assert "its daemon does not answer" in page


@pytest.mark.rule("O2", "O3", "R16")
def test_log_debts_and_standing_are_read_and_a_debt_retried_over_rest(debt: RecoveryDebt) -> None:
    client, viewer, operator = Client(), operator_token("viewer"), operator_token("operator")
    standing = client.get("/api/v1/recovery", **viewer).json()
    assert (standing["open_debts"], standing["escalated"], standing["held"]) == (1, 0, 0)
    (row,) = client.get("/api/v1/recovery/log?outcome=deferred&replica=gone", **viewer).json()["results"]
    assert (row["run_id"], row["epoch"], row["reason"]) == (debt.run_id, debt.epoch, "its daemon does not answer")
    assert client.get("/api/v1/recovery/log?outcome=adopted", **viewer).json()["results"] == []
    (owed,) = client.get("/api/v1/recovery/debts?open=true", **viewer).json()["results"]
    assert (owed["id"], owed["attempts"], owed["escalated_at"]) == (debt.pk, 1, None)
    assert client.get("/api/v1/recovery/debts?escalated=true", **viewer).json()["results"] == []
    path = f"/api/v1/recovery/debts/{debt.pk}/retry"
    body = {"data": json.dumps({"reason": REASON}), "content_type": "application/json"}
    assert client.post(path, **body, **viewer).status_code == 403
    assert client.post(path, **body, **operator).status_code == 202
    assert is_due(debt)
    RecoveryDebt.objects.update(closed_at=timezone.now())
    assert client.post(path, **body, **operator).status_code == 409
    assert client.post("/api/v1/recovery/debts/999999/retry", **body, **operator).status_code == 404


@pytest.mark.rule("O2", "R16")
def test_debts_are_shown_and_retried_from_the_shell(debt: RecoveryDebt) -> None:
    out = StringIO()
    call_command("recovery_debts", stdout=out)
    assert "1 owed, 0 escalated" in out.getvalue()
    assert "its daemon does not answer" in out.getvalue()
    with pytest.raises(CommandError, match="--reason"):
        call_command("recovery_debts", "--retry", str(debt.pk))
    call_command("recovery_debts", "--retry", str(debt.pk), "--reason", REASON, stdout=out)
    assert is_due(debt)
    told = StringIO()
    call_command("recovery_debts", "--json", stdout=told)
    assert json.loads(told.getvalue())["debts"][0]["id"] == debt.pk


@pytest.mark.rule("R16", "O1")
def test_escalated_debts_and_holds_with_their_end_are_shown_where_operators_look(debt: RecoveryDebt) -> None:
    RecoveryDebt.objects.update(escalated_at=timezone.now())
    end = timezone.now() + timedelta(seconds=80)
    silent = ledger.make_replica(name="silent")
    Replica.objects.filter(pk=silent.pk).update(
        held_until=end, held_why="perhaps an outage", beat_at=timezone.now() - timedelta(seconds=95)
    )
    client = sign_in("viewer")
    for page in ("admin:recovery_replica_changelist", "admin:recovery_recoveryaction_changelist"):
        assert (
            f"A hold is in force until {end:%H:%M:%S} UTC: 1 silent replica"
            in client.get(reverse(page)).content.decode()
        )
    debts = client.get(reverse("admin:recovery_recoverydebt_changelist"), {"standing": "escalated"}).content.decode()
    assert "escalated" in debts
    assert "1 not decided after five attempts" in client.get(reverse("admin:index")).content.decode()


@pytest.mark.rule("R16")
def test_the_console_report_has_every_outcome_with_its_count_and_what_was_left_alone(debt: RecoveryDebt) -> None:
    RecoveryDebt.objects.update(next_at=timezone.now())
    out = StringIO()
    call_command("recover", "--dry-run", stdout=out)
    assert "left alone: dry run: there are debts whose time has come" in out.getvalue()
    assert RecoveryDebt.objects.filter(closed_at=None).count() == 1
    out = StringIO()
    call_command("recover", stdout=out)
    assert "requeued             1" in out.getvalue()
    for word in ("adopted", "already settled", "interrupted", "deferred", "escalated"):
        assert f"{word:<18}   0" in out.getvalue()
