"""Every endpoint against every wrong credential: the right code, nothing leaked, nothing changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from admission.models import ApiToken
from admission.services.operator_tokens import issue_operator_token
from admission.services.runs import RUNNER_LEASE, take_away
from admission.services.tenants import issue_token, revoke_token
from controlplane.core.audit import SYSTEM
from controlplane.core.tokens import new_token
from runners.models import Runner
from runners.services.fleet import revoke_runner
from runners.services.rotation import rotate_token
from tests.api import doors
from tests.api.conftest import Caller, tenant_caller
from tests.api.doors import ENROL, OPERATIONS, RUNNERS, TENANTS, Victim, everything, make_victim
from tests.runners.conftest import make_runner

pytestmark = [pytest.mark.django_db, pytest.mark.rule("Q2", "O3")]

PAST = timedelta(seconds=1)


@pytest.fixture
def victim(db: None) -> Victim:
    return make_victim()


@contextmanager
def nothing_changes() -> Iterator[None]:
    before = everything()
    yield
    changed = {table for table, digest in everything().items() if digest != before[table]}
    assert not changed


def leaks(victim: Victim, answer: Any) -> list[str]:
    shown = answer.content.decode(errors="replace") + str(answer.headers)
    return [secret for secret in victim.secrets if secret in shown]


def expired_tenants(victim: Victim) -> str:
    assert victim.tenant.tenant is not None
    token, secret = issue_token(victim.tenant.tenant, "old", actor=SYSTEM)
    ApiToken.objects.filter(pk=token.pk).update(expires_at=timezone.now() - PAST)
    return secret


def revoked_tenants(victim: Victim) -> str:
    assert victim.tenant.tenant is not None
    token, secret = issue_token(victim.tenant.tenant, "old", actor=SYSTEM)
    revoke_token(token, actor=SYSTEM)
    return secret


def departed_operators(victim: Victim) -> str:
    from django.contrib.auth.models import User  # noqa: PLC0415 - beside its only use

    gone = User.objects.create_user("gone", is_superuser=True, is_active=False)
    return issue_operator_token(gone, "old", actor=SYSTEM)[1]


def revoked_runners(victim: Victim) -> str:
    other = make_runner()
    revoke_runner(other.runner, actor=SYSTEM, reason="x")
    return other.token


def rotated_runners(victim: Victim) -> str:
    """The victim's own one from before, the new one having been used."""
    old = victim.runner.token
    victim.runner = type(victim.runner)(
        victim.runner.runner, rotate_token(victim.runner.runner, actor=SYSTEM, used=old).token
    )
    assert victim.runner.get("/runner").status_code == 200
    return old


def outlived_runners(victim: Victim) -> str:
    """The victim's own one from before, its time being over, the new one never used."""
    old = victim.runner.token
    rotate_token(victim.runner.runner, actor=SYSTEM, used=old)
    Runner.objects.update(old_until=timezone.now() - PAST)
    return old


Make = Callable[[Victim], str]
NOBODYS: dict[str, Make] = {
    "none": lambda _: "",
    "malformed": lambda _: "a b c",
    "not ascii": lambda _: "wht_ü",
    "oversized": lambda _: "wht_" + "x" * 100_000,
    "unknown": lambda _: new_token("wht"),
    "unknown runner": lambda _: new_token("whr"),
    "an enrolment token": lambda victim: str(victim.facts["enrolment"]),
    "a job token": lambda victim: str(victim.given["job_token"]),
    "expired": expired_tenants,
    "revoked": revoked_tenants,
    "departed": departed_operators,
    "revoked runner": revoked_runners,
    "rotated": rotated_runners,
    "outlived": outlived_runners,
}


def test_the_table_has_every_operation_of_the_api(client: Any) -> None:
    schema = client.get("/api/schema/", headers={"accept": "application/vnd.oai.openapi+json"}).json()
    documented = {
        f"{method.upper()} {path.removeprefix('/api/v1')}"
        for path, methods in schema["paths"].items()
        for method in methods
    }
    assert documented == set(OPERATIONS)


@pytest.mark.parametrize("whose", NOBODYS)
def test_a_dead_or_foreign_credential_opens_nothing(victim: Victim, whose: str) -> None:
    token = NOBODYS[whose](victim)
    wrong = []
    with nothing_changes():
        for operation in [*TENANTS, *RUNNERS]:
            answer = victim.call(operation, token)
            if answer.status_code != 401 or leaks(victim, answer) or "WWW-Authenticate" not in answer:
                wrong.append((operation, answer.status_code, leaks(victim, answer)))
    assert not wrong


def test_a_live_credential_of_the_other_kind_opens_nothing(victim: Victim, operator: Caller) -> None:
    wrong = []
    with nothing_changes():
        for operations, tokens in (
            (TENANTS, [victim.runner.token]),
            (RUNNERS, [victim.tenant.token, operator.token]),
        ):
            for operation in operations:
                codes = {victim.call(operation, token).status_code for token in tokens}
                wrong += [] if codes == {401} else [(operation, codes)]
    assert not wrong


# What a tenant may do for itself, whoever's things the call names: it meets its own.
OWN = {
    "GET /batches", "GET /limits", "GET /permits", "GET /runs", "GET /tenants", "GET /tokens", "POST /batches",
    "POST /permits", "POST /permit-renewals", "POST /runs", "POST /tokens", "DELETE /permits/{permit}",
    "GET /secrets", "PUT /secrets/{name}",
}  # fmt: skip


def test_another_tenant_meets_none_of_it(victim: Victim) -> None:
    stranger = tenant_caller(quota=1)
    wrong = []
    with nothing_changes():
        for operation in [op for op in TENANTS if op not in OWN or op.startswith("GET")]:
            answer = victim.call(operation, stranger.token)
            allowed = (200,) if operation in OWN else (403, 404)
            if answer.status_code not in allowed or leaks(victim, answer):
                wrong.append((operation, answer.status_code, leaks(victim, answer)))
    assert not wrong


def test_what_another_tenant_does_for_itself_touches_nothing_of_the_victims(victim: Victim) -> None:
    stranger = tenant_caller(quota=1)
    assert victim.tenant.tenant is not None

    def victims() -> list[Any]:
        paths = ("/runs", "/batches", "/permits", "/tokens", "/limits", "/secrets")
        paths = (*paths, f"/tenants/{victim.facts['slug']}/quota")
        return [_without_clocks(victim.tenant.get(path).json()) for path in paths]

    before = victims()
    for operation in sorted(OWN):
        # By the query an operator names a tenant; a tenant names nobody.
        answer = victim.call(operation, stranger.token)
        assert answer.status_code in (200, 201, 429), (operation, answer.content)
        assert not leaks(victim, answer)
    assert victims() == before


def _without_clocks(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_clocks(item) for item in value]
    if isinstance(value, dict):
        dropped = ("lapses_in_seconds", "last_used_at")
        return {name: _without_clocks(item) for name, item in value.items() if name not in dropped}
    return value


@pytest.mark.rule("Q6")
def test_another_runner_does_nothing_to_the_job_also_with_its_job_token(victim: Victim) -> None:
    thief = make_runner()
    wrong = []
    with nothing_changes():
        for operation in [op for op in RUNNERS if op in doors.BODIES and op not in doors_to_itself()]:
            answer = victim.call(operation, thief.token)
            refused = answer.status_code == 401 or {v["verdict"] for v in answer.json()["verdicts"]} == {"superseded"}
            if not refused or leaks(victim, answer):
                wrong.append((operation, answer.status_code, leaks(victim, answer)))
        assert thief.get("/runner/holds").json()["assignments"] == []
    assert not wrong


def doors_to_itself() -> set[str]:
    """What a runner asks about itself alone, with no word in it about a job."""
    return {"POST /runner/claims", "POST /runner/drain", "POST /runner/token", "POST /runner/wish"}


@pytest.mark.rule("Q6")
def test_a_replayed_hold_of_an_earlier_epoch_does_nothing(victim: Victim) -> None:
    held = [(victim.given["run"], victim.given["epoch"])]
    from admission.models import Run  # noqa: PLC0415 - beside its only use

    Run.objects.filter(pk=victim.given["run"]).update(lease_until=timezone.now() - PAST)
    assert take_away(held, RUNNER_LEASE)
    wrong = []
    with nothing_changes():
        for operation in [op for op in RUNNERS if op in doors.BODIES and op not in doors_to_itself()]:
            answer = victim.call(operation, victim.runner.token)
            verdicts = {v["verdict"] for v in answer.json().get("verdicts", [])}
            refused = answer.status_code == 409 or verdicts == {"superseded"}
            wrong += [] if refused else [(operation, answer.status_code, answer.content)]
    assert not wrong


def test_a_used_enrolment_token_enrols_nobody_and_says_what_an_unknown_one_says(victim: Victim) -> None:
    first = victim.call(ENROL, "")
    assert first.status_code == 201
    with nothing_changes():
        answers = [victim.call(ENROL, ""), victim.call(ENROL, "", body={"token": "whe_x", "name": "m"})]
    assert [a.status_code for a in answers] == [401, 401]
    assert answers[0].json()["detail"] == answers[1].json()["detail"]


# The operations that look for what the path names before they look at the body, and find nothing in these tests.
NAMELESS = {"POST /leases/{role}/step-down", "POST /recovery/debts/{debt}/retry"}
HUGE = 1 << 40


@pytest.mark.parametrize(
    ("body", "code"),
    [
        pytest.param(b"{}", 413, id="oversized"),
        pytest.param(b"{cut", 400, id="malformed"),
        pytest.param(b"\xff\xfe", 400, id="not text"),
        pytest.param(b"[" * 100_000, 400, id="deep"),
        pytest.param(b'{"surplus": 1}', 400, id="unknown field"),
        pytest.param(b"[]", 400, id="a list"),
        pytest.param(b'{"reason": "\\u0000"}', 400, id="nul"),
    ],
)
def test_a_body_that_is_none_is_refused_at_every_door(
    victim: Victim, operator: Caller, body: bytes, code: int
) -> None:
    wrong = []
    length = HUGE if code == 413 else None
    with nothing_changes():
        for operation in sorted(set(doors.BODIES) - NAMELESS):
            if operation in doors.RAW and (code != 413 or operation.endswith("/artifacts")):
                continue  # takes any bytes; the caps of artifacts have tests of their own
            token = victim.tenant.token if operation in OWN else operator.token
            token = "" if operation == ENROL else victim.runner.token if operation in RUNNERS else token
            answer = victim.call(operation, token, body=body, length=length)
            wrong += [] if answer.status_code == code else [(operation, answer.status_code)]
    assert not wrong


@pytest.mark.rule("O2")
def test_a_tenant_issues_and_revokes_its_own_tokens(tenant: Caller, stranger: Caller) -> None:
    made = tenant.post("/tokens", {"name": "nightly", "lifetime_seconds": 3600}).json()
    caller = Caller(made["token"])
    assert caller.get("/runs").status_code == 200
    listed = tenant.get("/tokens").json()["results"]
    assert [(t["name"], t["status"]) for t in listed] == [("nightly", "valid"), ("test", "valid")]
    assert made["token"] not in str(listed)
    assert stranger.delete(f"/tokens/{made['id']}").status_code == 404
    assert tenant.delete(f"/tokens/{made['id']}").status_code == 204
    assert tenant.delete(f"/tokens/{made['id']}").status_code == 204
    assert caller.get("/runs").status_code == 401
    assert [t["status"] for t in tenant.get("/tokens").json()["results"]] == ["revoked", "valid"]


@pytest.mark.rule("O2")
@pytest.mark.parametrize(
    "body", [{}, {"name": ""}, {"name": "x", "lifetime_seconds": 0}, {"name": "x", "lifetime_seconds": 1e12}]
)
def test_a_wrong_token_is_not_issued(tenant: Caller, body: Any) -> None:
    assert tenant.post("/tokens", body).status_code == 400


@pytest.mark.rule("O2")
def test_an_operator_needs_the_permission_for_tokens(make_operator: Any, tenant: Caller) -> None:
    path = f"/tokens?tenant={tenant.tenant.slug if tenant.tenant else ''}"
    assert make_operator("admission.view_tenant").get(path).status_code == 403
    assert make_operator("admission.view_apitoken").post(path, {"name": "x"}).status_code == 403
    assert make_operator("admission.add_apitoken").post(path, {"name": "x", "reason": "lost"}).status_code == 201
