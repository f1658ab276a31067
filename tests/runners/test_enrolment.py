"""Enrolment tokens and what they buy."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from controlplane.core.audit import SYSTEM
from controlplane.core.errors import InvalidInput
from controlplane.core.models import AuditEntry
from runners.models import EnrolmentToken, Runner
from runners.services.enrolment import issue_enrolment_token, revoke_enrolment_token
from tests import ledger
from tests.api.conftest import Caller

pytestmark = pytest.mark.django_db


def enrol(nobody: Caller, secret: str, **fields: Any) -> Any:
    return nobody.post("/runners/enrol", {"token": secret, "name": "m", **fields})


@pytest.mark.rule("Q2")
def test_each_use_buys_one_runner_and_secrets_are_stored_as_hashes(nobody: Caller) -> None:
    row, secret = issue_enrolment_token(actor=SYSTEM, uses=2)
    answers = [enrol(nobody, secret) for _ in range(3)]
    assert [a.status_code for a in answers] == [201, 201, 401]
    assert answers[2].json()["code"] == "bad_enrolment_token"
    bought = answers[0].json()["token"]
    assert secret.startswith("whe_")
    assert bought.startswith("whr_")
    assert bought not in str(Runner.objects.values())
    assert secret not in str(EnrolmentToken.objects.values())
    assert bought not in str(AuditEntry.objects.values())
    assert AuditEntry.objects.filter(verb="enrol").count() == 2
    row.refresh_from_db()
    assert row.uses_left == 0


@pytest.mark.rule("Q2")
def test_an_expired_a_revoked_and_an_unknown_token_answer_the_same(nobody: Caller) -> None:
    expired, first = issue_enrolment_token(actor=SYSTEM)
    EnrolmentToken.objects.filter(pk=expired.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    revoked, second = issue_enrolment_token(actor=SYSTEM)
    assert revoke_enrolment_token(revoked, actor=SYSTEM) is True
    assert revoke_enrolment_token(revoked, actor=SYSTEM) is False
    answers = [enrol(nobody, secret) for secret in (first, second, "whe_unknown", "")]
    assert {a.status_code for a in answers} == {401}
    assert len({a.json()["detail"] for a in answers}) == 1
    assert not Runner.objects.exists()


@pytest.mark.rule("Q3")
def test_trust_labels_are_the_servers_to_give(nobody: Caller) -> None:
    _, secret = issue_enrolment_token(actor=SYSTEM, uses=2, trust_labels={"trust.level": "high"})
    assert enrol(nobody, secret, labels={"trust.level": "highest"}).status_code == 400
    answer = enrol(nobody, secret, labels={"gpu": "a100"}).json()
    shown = Caller(answer["token"]).get("/runner").json()
    assert shown["labels"] == {"gpu": "a100", "trust.level": "high"}
    with pytest.raises(InvalidInput):
        issue_enrolment_token(actor=SYSTEM, trust_labels={"level": "high"})


@pytest.mark.parametrize(
    "fields",
    [
        {"name": ""},
        {"name": "a\nb"},
        {"slots": 0},
        {"slots": "1"},
        {"slots": 10**9},
        {"executors": []},
        {"executors": ["ssh"]},
        {"labels": {"a b": "c"}},
        {"labels": {"a": ""}},
        {"labels": {f"l{n}": "x" for n in range(51)}},
        {"trust_labels": {}},
        {"version": "x" * 41},
        {"token": 5},
    ],
)
def test_a_wrong_machine_is_refused_and_costs_no_use(nobody: Caller, fields: dict[str, Any]) -> None:
    row, secret = issue_enrolment_token(actor=SYSTEM)
    assert enrol(nobody, secret, **fields).status_code == 400
    row.refresh_from_db()
    assert row.uses_left == 1


def test_operators_issue_list_and_revoke(operator: Caller, nobody: Caller) -> None:
    made = ledger.make_tenant(slug="acme")
    issued = operator.post("/enrolment-tokens", {"uses": 3, "tenant": "acme", "name": "rack 1", "reason": "two racks"})
    assert issued.status_code == 201
    secret = issued.json()["token"]
    assert enrol(nobody, secret).status_code == 201
    assert Runner.objects.get().tenant == made
    listed = operator.get("/enrolment-tokens").json()["results"]
    assert [(t["uses_left"], t["tenant"]) for t in listed] == [(2, "acme")]
    assert secret not in str(listed)
    assert operator.delete(f"/enrolment-tokens/{listed[0]['id']}?reason=lost").status_code == 204
    assert enrol(nobody, secret).status_code == 401
    assert operator.delete("/enrolment-tokens/999999?reason=lost").status_code == 404


@pytest.mark.parametrize("body", [{"uses": 0}, {"lifetime_seconds": 0}, {"lifetime_seconds": 1e9}, {"tenant": "none"}])
def test_wrong_enrolment_tokens_are_refused(operator: Caller, body: Any) -> None:
    assert operator.post("/enrolment-tokens", {"reason": "x", **body}).status_code in (400, 404)


@pytest.mark.rule("O2")
@pytest.mark.parametrize("hours", ["nan", "inf", "1e300", "-1", "0"])
def test_no_length_of_time_is_refused_by_hand_in_a_sentence(db: None, hours: str) -> None:
    with pytest.raises(CommandError, match="at most 30 days"):
        call_command("enrolment", "issue", "--hours", hours, "--reason", "x")
