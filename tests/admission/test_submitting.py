"""Submit: idempotent, bounded, and each wrong run for itself."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import override_settings

from admission.models import Run
from admission.services.submitting import Submission, _fleet_depth, submit_run, submit_runs
from controlplane.core.audit import SYSTEM
from controlplane.core.errors import IdempotencyMismatch, InvalidInput, TryLater
from tests import ledger

pytestmark = pytest.mark.django_db(transaction=True)

SPEC = {"command": ["true"]}


@pytest.fixture(autouse=True)
def _count_anew() -> None:
    _fleet_depth.forget()


@pytest.mark.rule("A27")
def test_the_same_key_and_body_is_the_same_run(make_tenant: Any) -> None:
    tenant = make_tenant()
    first = submit_run(tenant, SPEC, actor=SYSTEM, key="k")
    again = submit_run(tenant, {"command": ["true"], "priority": 0}, actor=SYSTEM, key="k")
    assert (first.outcome, again.outcome) == ("created", "existed")
    assert first.run == again.run
    assert Run.objects.count() == 1


@pytest.mark.rule("A27")
def test_the_same_key_with_another_body_is_refused(make_tenant: Any) -> None:
    tenant = make_tenant()
    submit_run(tenant, SPEC, actor=SYSTEM, key="k")
    with pytest.raises(IdempotencyMismatch):
        submit_run(tenant, {"command": ["false"]}, actor=SYSTEM, key="k")
    assert Run.objects.count() == 1


@pytest.mark.rule("A27")
def test_another_tenants_key_is_another_key(make_tenant: Any) -> None:
    assert {submit_run(make_tenant(), SPEC, actor=SYSTEM, key="k").outcome for _ in range(3)} == {"created"}


@pytest.mark.rule("A27")
def test_a_key_submitted_on_two_connections_at_once_makes_one_run(make_tenant: Any, connect: Any) -> None:
    tenant, first, observer = make_tenant(), connect(), connect(autocommit=True)
    first.execute(
        """INSERT INTO admission_run (tenant_id, spec, rank_at, idempotency_key, request_hash)
           VALUES (%s, '{}', now(), 'k', 'another body')""",
        (tenant.pk,),
    )
    second = ledger.Concurrent(submit_run, tenant, SPEC, actor=SYSTEM, key="k")
    ledger.until_waiting(observer, second)
    first.commit()
    with pytest.raises(IdempotencyMismatch):
        second.result()
    assert Run.objects.count() == 1


@pytest.mark.rule("A27")
def test_two_batches_with_the_same_keys_in_opposite_order_make_each_run_once(make_tenant: Any) -> None:
    tenant = make_tenant()
    keys = [f"k{n}" for n in range(200)]

    def send(order: list[str]) -> set[str]:
        return {r.outcome for r in submit_runs(tenant, [Submission(SPEC, k) for k in order], actor=SYSTEM)}

    for _ in range(3):
        calls = [ledger.Concurrent(send, keys), ledger.Concurrent(send, keys[::-1])]
        assert set().union(*(c.result() for c in calls)) <= {"created", "existed"}
        assert Run.objects.count() == len(keys)
        Run.objects.all().delete()


@pytest.mark.rule("A25")
def test_a_wrong_run_in_a_batch_hinders_no_other(make_tenant: Any) -> None:
    results = submit_runs(
        make_tenant(),
        [Submission(SPEC), Submission({"command": []}), Submission({**SPEC, "colour": 1}), Submission(SPEC, "")],
        actor=SYSTEM,
    )
    assert [r.outcome for r in results] == ["created", "invalid", "invalid", "invalid"]
    assert [e["field"] for r in results[1:] for e in r.errors] == ["command", "colour", "idempotency_key"]


@pytest.mark.rule("A27")
def test_one_key_twice_in_a_batch_is_one_run_or_a_conflict(make_tenant: Any) -> None:
    results = submit_runs(
        make_tenant(),
        [Submission(SPEC, "k"), Submission(SPEC, "k"), Submission({"command": ["x"]}, "k")],
        actor=SYSTEM,
    )
    assert [r.outcome for r in results] == ["created", "created", "conflict"]
    assert results[0].run == results[1].run
    assert Run.objects.count() == 1


@pytest.mark.rule("A21")
@pytest.mark.parametrize("name", ["queue_depth_tenant", "queue_depth_global"])
def test_a_full_queue_answers_try_later_before_anything_is_written(make_tenant: Any, name: str) -> None:
    depths = {"queue_depth_tenant": 3, "queue_depth_global": 1000}
    depths |= {name: 3, "queue_depth_tenant": 3}
    tenant = make_tenant()
    with override_settings(CONTROLPLANE=depths):
        submit_runs(tenant, [Submission(SPEC)] * 2, actor=SYSTEM)
        _fleet_depth.forget()
        with pytest.raises(TryLater) as refusal:
            submit_runs(tenant, [Submission(SPEC)] * 2, actor=SYSTEM)
        assert refusal.value.retry_after_seconds > 0
        assert Run.objects.count() == 2
        submit_runs(tenant, [Submission(SPEC)], actor=SYSTEM)


@pytest.mark.rule("A21")
def test_the_fleets_depth_counts_every_tenant_and_waiting_for_its_time(make_tenant: Any) -> None:
    with override_settings(CONTROLPLANE={"queue_depth_global": 3, "queue_depth_tenant": 3}):
        submit_run(make_tenant(), {**SPEC, "not_before": "2100-01-01T00:00:00Z"}, actor=SYSTEM)
        submit_runs(make_tenant(), [Submission(SPEC)] * 2, actor=SYSTEM)
        _fleet_depth.forget()
        with pytest.raises(TryLater):
            submit_run(make_tenant(), SPEC, actor=SYSTEM)


@pytest.mark.rule("A21")
def test_a_tenants_own_depth_comes_before_the_fleets_default(make_tenant: Any) -> None:
    tenant = make_tenant()
    tenant.queue_depth = 1
    submit_run(tenant, SPEC, actor=SYSTEM)
    with pytest.raises(TryLater):
        submit_run(tenant, SPEC, actor=SYSTEM)


@pytest.mark.rule("A25")
def test_an_error_says_the_field_and_never_the_value(make_tenant: Any) -> None:
    with pytest.raises(InvalidInput) as refusal:
        submit_run(make_tenant(), {**SPEC, "env": {"TOKEN": ["hunter2"]}}, actor=SYSTEM)
    assert "env.TOKEN" in str(refusal.value.errors)
    assert "hunter2" not in str(refusal.value.errors)
