"""Why a run waits: the right limit in each case, the same budget whatever the sizes, nothing about others' work."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from admission.models import Counter, Permit, Run, Tenant
from admission.physical.entitlement import Entitlement
from admission.services.blockers import COUNTED, SHOWN_HOLDERS, Code
from admission.services.limits import set_harness_capacity, set_key_limit
from admission.services.permits import claim_permit
from admission.services.physical import PassReport, report_pass
from admission.services.quotas import set_quota
from admission.services.runs import cancel_runs
from admission.services.tenants import pause_tenant
from admission.services.why import Why, explain
from controlplane.core.audit import SYSTEM
from controlplane.core.errors import NotFound
from recovery.models import Replica
from runners.models import Runner
from tests import ledger

pytestmark = pytest.mark.django_db

BUDGET = 7
"""Run, drivers of two kinds, standing, holders, limits."""

MINUTE = timedelta(minutes=1)
Submit = Callable[..., list[int]]


def first(run: int) -> Code:
    return explain(run).blockers[0].code


def codes(run: int) -> list[Code]:
    return [blocker.code for blocker in explain(run).blockers]


@pytest.fixture
def driver(make_driver: Any) -> Any:
    return make_driver()


def a_runner(**changes: Any) -> Runner:
    values = {"name": "rack", "shown": "x", "hash": b"h" * 32, "executors": ["docker"], "contact_at": timezone.now()}
    return Runner.objects.create(**(values | changes))


def fill(driver: Any, tenant: Tenant, count: int = 1, **spec: Any) -> list[int]:
    runs = ledger.submit(tenant, count, **spec)
    ledger.start(driver, ledger.admit_all(driver))
    return runs


# -- the cases --------------------------------------------------------------------------------------------------------


@pytest.mark.rule("A24")
def test_a_full_quota_and_who_holds_it(make_tenant: Any, driver: Any, submit: Submit) -> None:
    tenant = make_tenant(2)
    held = fill(driver, tenant, 2)
    [run] = submit(tenant)
    answer = explain(run)
    [quota] = answer.blockers
    assert (quota.code, quota.scope, quota.key, quota.limit, quota.in_flight) == ("quota", "tenant", tenant.slug, 2, 2)
    assert {h.run for h in quota.holders} == set(held)
    assert quota.holder_count == 2
    assert all(1700 < h.lease_left_seconds <= 1800 and h.reachable for h in quota.holders)
    assert {h.driver for h in quota.holders} == {driver.name}
    assert "2 of 2 in use" in answer.sentence


@pytest.mark.rule("A24")
def test_quota_zero(make_tenant: Any, driver: Any, submit: Submit) -> None:
    [run] = submit(make_tenant(0))
    assert first(run) == Code.QUOTA_ZERO


@pytest.mark.rule("A24", "A26")
def test_a_pause_with_its_note_and_its_end(make_tenant: Any, driver: Any, submit: Submit) -> None:
    tenant, until = make_tenant(1), timezone.now() + MINUTE
    [run] = submit(tenant)
    pause_tenant(tenant, actor=SYSTEM, reason="invoice overdue", resume_at=until)
    answer = explain(run)
    assert (answer.blockers[0].code, answer.blockers[0].until, answer.next_look_at) == ("tenant_paused", until, until)
    assert "invoice overdue" in answer.sentence


@pytest.mark.rule("A24", "P18")
def test_a_full_concurrency_key(make_tenant: Any, driver: Any, submit: Submit) -> None:
    tenant = make_tenant()
    [held] = fill(driver, tenant, concurrency_key="deploy")
    [run] = submit(tenant, concurrency_key="deploy")
    [key] = explain(run).blockers
    assert (key.code, key.scope, key.key, key.limit) == ("key_limit", "key", "deploy", 1)
    assert [h.run for h in key.holders] == [held]


@pytest.mark.rule("A24", "A20")
def test_a_full_harness(make_tenant: Any, driver: Any, submit: Submit) -> None:
    tenant = make_tenant()
    set_harness_capacity("tank", 1, actor=SYSTEM)
    fill(driver, tenant, harness="tank")
    [run] = submit(tenant, harness="tank")
    assert codes(run) == [Code.HARNESS_FULL]


@pytest.mark.rule("A24")
def test_labels_and_which_of_them_nobody_has(make_tenant: Any, driver: Any, submit: Submit) -> None:
    tenant = make_tenant()
    a_runner(labels={"zone": "lab", "gpu": "a100"})
    [run] = submit(tenant, labels={"zone": "lab", "gpu": "h100"})
    answer = explain(run)
    assert (answer.blockers[0].code, answer.blockers[0].labels) == ("labels", {"gpu": "h100"})
    assert "gpu=h100" in answer.sentence
    assert "zone" not in answer.sentence


@pytest.mark.rule("A24")
def test_labels_that_no_single_driver_has_together(make_tenant: Any, submit: Submit) -> None:
    a_runner(labels={"zone": "lab"})
    a_runner(labels={"gpu": "a100"}, hash=b"i" * 32, trust_labels={"trust.site": "north"})
    [run] = submit(make_tenant(), labels={"zone": "lab", "gpu": "a100"})
    assert "no driver has all" in explain(run).sentence
    [suits] = submit(make_tenant(), labels={"trust.site": "north"})
    assert first(suits) != Code.LABELS


@pytest.mark.rule("A24")
def test_no_driver_is_alive(make_tenant: Any, submit: Submit) -> None:
    [run] = submit(make_tenant(5))
    ledger.make_replica(beat_at=timezone.now() - 10 * MINUTE)
    a_runner(tenant=make_tenant())
    answer = explain(run)
    assert answer.blockers[0].code == Code.NO_DRIVER
    assert "alive" in answer.sentence


@pytest.mark.rule("A24")
@pytest.mark.parametrize(
    ("replica", "says"),
    [
        ({"executor": "docker"}, "backend process"),
        ({"executor": "process", "draining_at": timezone.now()}, "draining"),
    ],
)
def test_nobody_offers_the_backend_or_all_are_draining(
    make_tenant: Any, submit: Submit, replica: dict[str, Any], says: str
) -> None:
    ledger.make_replica(**replica)
    [run] = submit(make_tenant(), backend="process")
    assert first(run) == Code.NO_DRIVER
    assert says in explain(run).sentence


@pytest.mark.rule("A24", "A19")
def test_too_large_for_every_driver(make_tenant: Any, submit: Submit) -> None:
    ledger.make_replica(memory_mib=512)
    [large] = submit(make_tenant(), resources={"memory_mib": 1024})
    assert codes(large) == [Code.RESOURCES]
    [fits] = submit(make_tenant())
    assert Code.RESOURCES not in codes(fits)


@pytest.mark.rule("A24", "A29")
def test_every_driver_that_suits_is_full(make_tenant: Any, driver: Any, submit: Submit) -> None:
    tenant = make_tenant()
    Replica.objects.filter(pk=driver.id).update(slots=2)
    ledger.make_replica(executor="process")
    fill(driver, tenant, 2)
    [run] = submit(tenant, backend="docker")
    [full] = explain(run).blockers
    assert (full.code, full.in_flight, full.limit) == ("drivers_full", 2, 2)
    [other] = submit(tenant, backend="process")
    assert Code.DRIVERS_FULL not in codes(other)


@pytest.mark.rule("A24", "P15")
def test_every_physical_slot_is_taken_or_cannot_be_counted(make_tenant: Any, submit: Submit) -> None:
    instance = Entitlement("an instance", 2, 0, hosted=False)
    replicas = [ledger.make_replica() for _ in range(2)]
    tenant = make_tenant()
    [run] = submit(tenant)
    told = {"machine": "m", "running": 1}
    report_pass(instance, PassReport(replicas[0].name, **told, created=1))
    # Of the other nothing is known: it may be on another machine.
    assert Code.PLACES not in codes(run)
    report_pass(instance, PassReport(replicas[1].name, **told, created=1))
    [full] = explain(run).blockers
    assert (full.code, full.in_flight, full.limit) == (Code.PLACES, 2, 2)
    assert "2 containers of at most 2" in full.sentence
    report_pass(instance, PassReport(replicas[1].name, **told, error="Redis at 10.0.0.7 has lost the slots"))
    assert "Redis at 10.0.0.7 has lost the slots" in explain(run).sentence
    assert "10.0.0.7" not in explain(run, tenant_id=tenant.pk).sentence
    assert "cannot be counted" in explain(run, tenant_id=tenant.pk).sentence
    # The page keeps the error with its age; a run waits for it no more.
    report_pass(instance, PassReport(replicas[1].name, **told))
    assert Code.PLACES not in codes(run)


@pytest.mark.rule("A24", "A28")
def test_a_run_that_waits_for_its_time(make_tenant: Any, driver: Any, submit: Submit) -> None:
    at = timezone.now() + 60 * MINUTE
    [run] = submit(make_tenant(), not_before=at.isoformat())
    answer = explain(run)
    assert (answer.blockers[0].code, answer.blockers[0].until, answer.next_look_at) == ("not_before", at, at)
    assert answer.standing is None


@pytest.mark.rule("A24", "A18")
def test_others_go_first(make_tenant: Any, driver: Any, submit: Submit) -> None:
    tenant, other = make_tenant(), make_tenant(weight=3)
    submit(other)
    earlier = submit(tenant, 2)
    [run] = submit(tenant)
    Counter.objects.filter(tenant=tenant).update(virtual_time=5)
    answer = explain(run)
    assert [b.code for b in answer.blockers] == [Code.BACKLOG]
    assert answer.standing is not None
    assert (answer.standing.position, answer.standing.tenants_ahead) == (3, 1)
    assert (answer.standing.share, answer.standing.virtual_lag) == (0.25, 5)
    assert explain(earlier[0]).standing.position == 1  # type: ignore[union-attr]


@pytest.mark.rule("A24", "A11")
def test_a_holder_that_is_not_heard_and_when_its_permit_lapses(make_tenant: Any, driver: Any, submit: Submit) -> None:
    tenant = make_tenant(1)
    fill(driver, tenant)
    [run] = submit(tenant)
    ledger.make_replica()
    Replica.objects.filter(pk=driver.id).update(beat_at=timezone.now() - 3 * MINUTE)
    Permit.objects.update(renewed_at=timezone.now() - 20 * MINUTE)
    answer = explain(run)
    assert [b.code for b in answer.blockers] == [Code.QUOTA, Code.HOLDER_UNREACHABLE]
    lost = answer.blockers[1]
    assert lost.lapses_in_seconds == pytest.approx(600, abs=10)
    assert lost.holders[0].reachable is False
    assert lost.holders[0].driver_heard_seconds_ago == pytest.approx(180, abs=10)
    assert driver.name in answer.sentence
    assert "lapses in" in answer.sentence
    Replica.objects.filter(pk=driver.id).delete()
    assert codes(run)[1] == Code.HOLDER_UNREACHABLE, "a driver without a row is not heard either"


@pytest.mark.rule("A24")
def test_the_hold_of_a_silent_runner_ends_with_its_lease_not_with_the_permit(make_tenant: Any, submit: Submit) -> None:
    tenant, runner = make_tenant(1), a_runner(contact_at=timezone.now() - 10 * MINUTE)
    known = ledger.make_driver("runner")
    driver = type(known)(**{f: getattr(known, f) for f in known.__slots__} | {"id": runner.pk})
    fill(driver, tenant)
    [run] = submit(tenant)
    lost = next(b for b in explain(run).blockers if b.code is Code.HOLDER_UNREACHABLE)
    assert lost.lapses_in_seconds == pytest.approx(120, abs=10)


@pytest.mark.rule("A24")
def test_a_run_heavier_than_its_limit_and_one_behind_a_heavy_one(
    make_tenant: Any, driver: Any, submit: Submit
) -> None:
    tenant = make_tenant(3)
    fill(driver, tenant, 2)
    [heavy], [light] = submit(tenant, weight=3), submit(tenant)
    assert codes(heavy) == [Code.QUOTA]
    assert codes(light) == [Code.HEAVY_FIRST, Code.BACKLOG]
    assert f"Run {heavy}" in explain(light).sentence
    assert ledger.admit_all(driver) == []
    set_quota(tenant, 2, actor=SYSTEM)
    assert first(heavy) == Code.TOO_HEAVY


@pytest.mark.rule("A24")
def test_a_tenant_being_deleted_and_a_passed_queue_deadline(make_tenant: Any, driver: Any, submit: Submit) -> None:
    tenant = make_tenant()
    [run] = submit(tenant)
    Run.objects.filter(pk=run).update(queue_deadline=timezone.now() - MINUTE)
    assert codes(run) == [Code.EXPIRED]
    Tenant.objects.filter(pk=tenant.pk).update(deleting_at=timezone.now())
    assert codes(run) == [Code.DELETING, Code.EXPIRED]


@pytest.mark.rule("A24")
def test_several_limits_at_once_come_in_order_of_decisiveness(make_tenant: Any, driver: Any, submit: Submit) -> None:
    tenant = make_tenant(1)
    set_harness_capacity("tank", 1, actor=SYSTEM)
    spec = {"concurrency_key": "deploy", "harness": "tank"}
    fill(driver, tenant, **spec)
    [run] = submit(tenant, **spec)
    assert codes(run) == [Code.QUOTA, Code.KEY_LIMIT, Code.HARNESS_FULL]
    pause_tenant(tenant, actor=SYSTEM, reason="enough")
    assert codes(run) == [Code.PAUSED, Code.QUOTA, Code.KEY_LIMIT, Code.HARNESS_FULL]
    set_key_limit(tenant, "deploy", 0, actor=SYSTEM)
    assert codes(run) == [Code.PAUSED, Code.KEY_LIMIT, Code.QUOTA, Code.HARNESS_FULL]


@pytest.mark.rule("A24", "G3")
def test_a_missing_counter_is_named(make_tenant: Any, driver: Any, submit: Submit) -> None:
    [run] = submit(make_tenant(), harness="tank")
    Counter.objects.filter(scope="harness").delete()
    assert first(run) == Code.HARNESS_FULL
    assert "no counter" in explain(run).sentence


@pytest.mark.rule("A24")
def test_nothing_blocks_it(make_tenant: Any, driver: Any, submit: Submit) -> None:
    [run] = submit(make_tenant(1))
    answer = explain(run)
    assert (list(answer.blockers), answer.next_look_at) == ([], None)
    assert "Nothing blocks it" in answer.sentence
    assert [a.run for a in ledger.admit_all(driver)] == [run]


@pytest.mark.rule("A24")
def test_runs_that_do_not_wait_say_so(make_tenant: Any, driver: Any, submit: Submit) -> None:
    [run] = submit(make_tenant(1))
    admitted = ledger.admit_all(driver)

    def said() -> Why:
        answer = explain(run)
        assert (list(answer.blockers), answer.standing) == ([], None)
        assert "does not wait" in answer.sentence
        return answer

    assert driver.name in said().sentence
    held = ledger.start(driver, admitted)
    assert "runs on" in said().sentence
    cancel_runs([run], actor=SYSTEM)
    assert "asked to stop" in said().sentence
    ledger.succeed(driver, held)
    assert said().state == "succeeded"


# -- what it costs and what it tells ----------------------------------------------------------------------------------


def _many(tenant: Tenant, runs: int, holders: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            """INSERT INTO admission_run (tenant_id, spec, rank_at)
               SELECT %s, '{}', now() - interval '1 hour' FROM generate_series(1, %s)""",
            (tenant.pk, runs),
        )
        cursor.execute(
            """INSERT INTO admission_permit (holder, scope, key, weight, tenant_id, driver_name, acquired_at,
                                             renewed_at, lapse_seconds)
               SELECT 'ext:0:more-' || n, 'tenant', %(key)s, 1, %(id)s, '', now() + make_interval(secs => n), now(), 60
               FROM generate_series(1, %(n)s) n""",
            {"key": str(tenant.pk), "id": tenant.pk, "n": holders},
        )
    Counter.objects.filter(scope="tenant", key=str(tenant.pk)).update(in_flight=holders + 1, limit=holders + 1)


@pytest.mark.rule("A24")
def test_the_number_of_statements_is_fixed_and_the_answer_bounded(
    make_tenant: Any, driver: Any, submit: Submit, django_assert_num_queries: Any
) -> None:
    tenant = make_tenant(1)
    set_harness_capacity("tank", 1, actor=SYSTEM)
    spec = {"concurrency_key": "deploy", "harness": "tank"}
    fill(driver, tenant, **spec)
    [run], [plain] = submit(tenant, **spec), submit(make_tenant())
    for asked in (run, plain):
        with django_assert_num_queries(BUDGET):
            explain(asked)
    _many(tenant, COUNTED + 5, COUNTED + 5)
    for n in range(30):
        ledger.make_replica(name=f"more-{n}")
        a_runner(hash=n.to_bytes(32, "big"))
    ledger.multiply_tenants(Tenant.objects.get(pk=ledger.run(plain).tenant_id), 50)
    with django_assert_num_queries(BUDGET):
        answer = explain(run)
    quota = answer.blockers[0]
    assert (len(quota.holders), quota.holder_count) == (SHOWN_HOLDERS, COUNTED + 1)
    assert [h.acquired_at for h in quota.holders] == sorted(h.acquired_at for h in quota.holders)
    assert answer.standing is not None
    assert (answer.standing.position, answer.standing.position_beyond) == (COUNTED + 1, True)
    ledger.start(driver, ledger.admit_all(driver))
    with django_assert_num_queries(1):
        explain(plain)


@pytest.mark.rule("A24", "O3")
def test_a_tenant_sees_of_others_only_weight_and_lease(make_tenant: Any, driver: Any, submit: Submit) -> None:
    tenant, other = make_tenant(), make_tenant(slug="secretive")
    set_harness_capacity("tank", 2, actor=SYSTEM)
    fill(driver, other, harness="tank")
    [mine] = fill(driver, tenant, harness="tank")
    [run] = submit(tenant, harness="tank")
    theirs, own = explain(run, tenant_id=tenant.pk).blockers[0].holders
    assert (theirs.holder, theirs.tenant, theirs.run, theirs.driver, theirs.weight) == ("", "", None, "", 1)
    assert theirs.lease_left_seconds > 0
    assert (own.run, own.tenant) == (mine, tenant.slug)
    assert explain(run).blockers[0].holders[0].tenant == "secretive"
    with pytest.raises(NotFound):
        explain(run, tenant_id=other.pk)


@pytest.mark.rule("A24", "A23")
def test_an_outside_holder_is_named_by_its_own_id(make_tenant: Any, driver: Any, submit: Submit) -> None:
    tenant = make_tenant(1)
    claim_permit(f"ext:{tenant.pk}:job:7", tenant_id=tenant.pk, lapse_seconds=60)
    [run] = submit(tenant)
    [holder] = explain(run).blockers[0].holders
    assert (holder.holder, holder.run, holder.reachable) == ("job:7", None, None)
    assert 50 < holder.lease_left_seconds <= 60
