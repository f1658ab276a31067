"""Runner tokens that are replaced, and machines that come back (rule Q2)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.core.audit import SYSTEM
from controlplane.core.models import AuditEntry
from runners.models import Runner
from runners.services.enrolment import issue_enrolment_token
from runners.services.fleet import revoke_runner
from runners.services.rotation import rotate_token
from tests import ledger
from tests.api.conftest import Caller
from tests.runners.conftest import RunnerCaller, named

pytestmark = [pytest.mark.django_db, pytest.mark.rule("Q2")]


def rotated(runner: RunnerCaller, **body: Any) -> RunnerCaller:
    answer = runner.post("/runner/token", body)
    assert answer.status_code == 200, answer.content
    return RunnerCaller(runner.runner, answer.json()["token"])


def alive(caller: Caller) -> bool:
    return bool(caller.get("/runner").status_code == 200)


def test_both_tokens_open_until_the_new_one_was_used(runner: RunnerCaller) -> None:
    new = rotated(runner)
    assert alive(runner)
    assert alive(runner)
    assert alive(new)
    assert not alive(runner)
    assert alive(new)
    stored = str(Runner.objects.values()) + str(AuditEntry.objects.values())
    assert new.token not in stored


def test_the_old_token_ends_at_its_time_though_the_new_one_was_never_used(runner: RunnerCaller) -> None:
    new = rotated(runner, overlap_seconds=60)
    assert alive(runner)
    Runner.objects.filter(pk=runner.runner).update(old_until=timezone.now() - timedelta(seconds=1))
    assert not alive(runner)
    assert alive(new)


def test_a_rotation_whose_answer_was_lost_is_asked_for_again(runner: RunnerCaller) -> None:
    lost = rotated(runner)
    new = rotated(runner)
    assert not alive(lost)
    assert alive(runner), "it has no other one yet"
    assert alive(new)
    assert not alive(runner)


def test_a_replaced_token_rotates_nothing(runner: RunnerCaller) -> None:
    new = rotated(runner)
    assert alive(new)
    assert runner.post("/runner/token", {}).status_code == 401
    assert alive(new)


def test_what_it_holds_it_goes_on_holding(runner: RunnerCaller, tenant: Caller) -> None:
    run = ledger.submit(tenant.tenant)[0]
    given = runner.claimed()[0]
    new = rotated(runner)
    for caller in (runner, new):
        assert caller.job(given, "start").json()["verdict"] == "ok"
    assert new.job(given, "result", ending="succeeded", exit_code=0).status_code == 200
    assert ledger.state(run) == "succeeded"


def test_a_revocation_ends_both(runner: RunnerCaller) -> None:
    new = rotated(runner)
    revoke_runner(runner.runner, actor=SYSTEM, reason="stolen")
    assert not alive(runner)
    assert not alive(new)
    assert runner.post("/runner/token", {}).status_code == 401


def test_an_operator_rotates_too_with_a_permission_of_its_own(
    runner: RunnerCaller, make_operator: Any, operator: Caller
) -> None:
    path = f"/runners/{runner.runner}/rotate"
    assert make_operator("runners.pause_runner").post(path, {"reason": "x"}).status_code == 403
    assert operator.post(path, {}).status_code == 400
    assert operator.post("/runners/999999/rotate", {"reason": "x"}).status_code == 404
    answer = make_operator("runners.rotate_runner").post(path, {"reason": "leaked", "overlap_seconds": 0})
    assert not alive(runner)
    assert alive(Caller(answer.json()["token"]))
    entry = AuditEntry.objects.get(verb="rotate")
    assert (entry.reason, entry.subject) == ("leaked", str(runner.runner))


@pytest.mark.django_db(transaction=True)
def test_of_two_rotations_at_once_each_new_token_is_the_last_ones_or_opens_nothing(runner: RunnerCaller) -> None:
    calls = [ledger.Concurrent(rotate_token, runner.runner, actor=SYSTEM, used=runner.token) for _ in range(2)]
    tokens = [call.result().token for call in calls]
    assert alive(runner)
    assert sum(alive(Caller(token)) for token in tokens) == 1


def come_back(runner: RunnerCaller, **fields: Any) -> Any:
    row = Runner.objects.get(pk=runner.runner)
    _, secret = issue_enrolment_token(actor=SYSTEM, runner=row)
    return Caller().post("/runners/enrol", {"token": secret, "name": "again", **fields})


def test_a_machine_that_comes_back_is_the_same_runner_and_the_old_token_is_dead(
    runner: RunnerCaller, tenant: Caller
) -> None:
    run = ledger.submit(tenant.tenant)[0]
    given = runner.claimed()[0]
    runner.job(given, "start")
    answer = come_back(runner, slots=3)
    assert answer.json()["id"] == runner.runner
    assert not alive(runner)
    # Whoever still has the old token may be executing it: taken from it, as at a revocation.
    assert (ledger.run(run).state, ledger.run(run).reason) == ("queued", "runner_revoked")
    new = RunnerCaller(runner.runner, answer.json()["token"])
    assert new.job(given, "result", ending="succeeded").status_code == 409
    assert new.post("/runner/heartbeats", {"runs": [named(given)]}).json()["verdicts"][0]["verdict"] == "superseded"
    assert Runner.objects.count() == 1
    assert new.get("/runner").json()["slots"] == 3


def test_a_revoked_runner_comes_back_with_its_trust_labels(runner: RunnerCaller, operator: Caller) -> None:
    Runner.objects.filter(pk=runner.runner).update(trust_labels={"trust.zone": "a"})
    revoke_runner(runner.runner, actor=SYSTEM, reason="lost")
    issued = operator.post("/enrolment-tokens", {"runner": runner.runner, "uses": 5, "reason": "a new disk"})
    assert (issued.status_code, issued.json()["uses_left"]) == (201, 1)
    answer = Caller().post("/runners/enrol", {"token": issued.json()["token"], "name": "again"})
    assert Caller(answer.json()["token"]).get("/runner").json()["labels"] == {"trust.zone": "a"}
    assert operator.post("/enrolment-tokens", {"runner": 999_999, "reason": "x"}).status_code == 404
