"""Admission: what is admitted, in which order, and that nothing hides anything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import DatabaseError, connection
from django.test.utils import CaptureQueriesContext

from admission import engine
from admission.drivers import Driver, DriverGone
from admission.engine import Envelope, admit
from admission.models import Attempt, Counter, Permit, Run, Tenant
from admission.services.limits import change_limit
from admission.services.quotas import set_quota
from admission.services.readings import read_highest_concurrency, read_in_flight
from admission.services.tenants import pause_tenant, resume_tenant
from admission.states import Scope
from controlplane.core.audit import SYSTEM
from recovery.models import Replica
from recovery.services.replicas import replica_driver
from tests import ledger

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.rule("A4", "A22")
def test_one_call_admits_up_to_the_quota_of_each_tenant(make_tenant: Any, make_driver: Any, submit: Any) -> None:
    one, three, free = make_tenant(1), make_tenant(3), make_tenant()
    for tenant in (one, three, free):
        submit(tenant, 5)
    admitted = ledger.admit_all(make_driver())
    by_tenant = [sum(a.tenant == t.slug for a in admitted) for t in (one, three, free)]
    assert by_tenant == [1, 3, 5]
    ledger.assert_conserved()


@pytest.mark.rule("A6", "R1")
def test_each_admission_is_a_new_attempt_with_a_permit_of_its_own(
    make_tenant: Any, make_driver: Any, submit: Any
) -> None:
    tenant, driver = make_tenant(1), make_driver()
    [run_id] = submit(tenant)
    for number in (1, 2, 3):
        [admitted] = ledger.admit_all(driver)
        assert (admitted.run, admitted.attempt) == (run_id, number)
        assert list(Permit.objects.values_list("holder", flat=True)) == [f"{run_id}.{number}"]
        row = ledger.run(run_id)
        assert (row.driver_kind, row.driver_id, row.driver_incarnation) == ("replica", driver.id, driver.incarnation)
        engine_epoch = row.epoch
        ledger.give_back(driver, ledger.holds([admitted]))
        assert ledger.run(run_id).epoch == engine_epoch + 1
    assert [a.number for a in ledger.attempts(run_id)] == [1, 2, 3]
    ledger.assert_conserved()


@pytest.mark.rule("A3")
def test_the_reading_counts_what_holds_compute_and_nothing_queued(
    make_tenant: Any, make_driver: Any, submit: Any
) -> None:
    tenant, driver = make_tenant(), make_driver()
    submit(tenant, 5, weight=2)
    admitted = ledger.admit_all(driver, 2)
    ledger.start(driver, admitted[:1])
    assert read_in_flight() == {tenant.pk: 4}
    Run.objects.filter(pk=admitted[0].run).update(kind="session")
    assert read_in_flight() == {tenant.pk: 2}
    Run.objects.filter(pk=admitted[0].run).update(kind=None)
    assert read_in_flight() == {tenant.pk: 4}


@pytest.mark.rule("A2")
def test_a_tenant_at_its_cap_is_not_even_looked_at(make_tenant: Any, make_driver: Any, submit: Any) -> None:
    full, other, driver = make_tenant(1), make_tenant(1), make_driver()
    submit(full, 3)
    ledger.admit_all(driver)
    submit(other)
    flows = engine.read_flows(driver, page=100)
    assert [f["tenant_id"] for f in flows] == [other.pk]


@pytest.mark.rule("A2")
def test_tenants_whose_runs_suit_other_drivers_hide_nobody(make_tenant: Any, make_driver: Any, submit: Any) -> None:
    for _ in range(30):
        submit(make_tenant(), labels={"gpu": "yes"})
    last = make_tenant()
    [run_id] = submit(last)
    Counter.objects.filter(tenant=last).update(virtual_time=1000)
    assert [a.run for a in ledger.admit_all(make_driver(), 1)] == [run_id]


@pytest.mark.rule("A2")
def test_more_unsuited_tenants_than_a_page_hide_nobody(make_tenant: Any, make_driver: Any, submit: Any) -> None:
    template = make_tenant()
    submit(template, labels={"gpu": "yes"})
    ledger.multiply_tenants(template, 1500)
    last = make_tenant()
    [run_id] = submit(last)
    Counter.objects.filter(tenant=last).update(virtual_time=1000)
    assert [a.run for a in ledger.admit_all(make_driver(), 1)] == [run_id]


@pytest.mark.rule("A20")
@pytest.mark.parametrize("limit", [{"harness": "browser"}, {"concurrency_key": "deploy"}])
def test_a_full_shared_limit_blocks_only_its_own_runs(
    make_tenant: Any, make_driver: Any, submit: Any, limit: dict[str, str]
) -> None:
    tenant, other, driver = make_tenant(50), make_tenant(50), make_driver()
    submit(tenant, 10, **limit)
    scope, key = (
        (Scope.HARNESS, "browser") if "harness" in limit else (Scope.KEY, f"{tenant.pk}:{limit['concurrency_key']}")
    )
    change_limit(Counter.objects.get(scope=scope, key=key), 1, actor=SYSTEM)
    assert len(ledger.admit_all(driver, 1)) == 1
    [behind], [others] = submit(tenant), submit(other)
    assert {a.run for n in range(4) for a in ledger.admit_all(driver, 1)} == {behind, others}
    ledger.assert_conserved()


@pytest.mark.rule("A2")
def test_a_heavy_run_that_waits_for_its_turn_keeps_its_place_and_hides_no_other_tenant(
    make_tenant: Any, make_driver: Any, submit: Any
) -> None:
    tenant, other, driver = make_tenant(3), make_tenant(), make_driver()
    submit(tenant)
    [first] = ledger.admit_all(driver)
    [heavy], _light, [others] = submit(tenant, weight=3), submit(tenant), submit(other)
    Counter.objects.filter(tenant=other).update(virtual_time=1000)
    assert [a.run for a in ledger.admit_all(driver, 1)] == [others]
    ledger.holds_for(3, lambda: ledger.admit_all(driver, 1) == [])
    ledger.succeed(driver, ledger.start(driver, [first]))
    assert [a.run for a in ledger.admit_all(driver, 1)] == [heavy]
    ledger.assert_conserved()


@pytest.mark.rule("A2")
def test_a_run_heavier_than_its_quota_ever_allows_is_passed_over(
    make_tenant: Any, make_driver: Any, submit: Any
) -> None:
    tenant, driver = make_tenant(3), make_driver()
    submit(tenant, weight=5)
    [light] = submit(tenant)
    assert [a.run for n in range(3) for a in ledger.admit_all(driver, 1)] == [light]


@pytest.mark.rule("A18")
def test_a_tenant_with_a_long_queue_does_not_delay_anothers_first_run(
    make_tenant: Any, make_driver: Any, submit: Any
) -> None:
    many, driver = make_tenant(), make_driver()
    submit(many, 500)
    for _ in range(5):
        ledger.admit_all(driver, 10)
    late = make_tenant()
    [run_id] = submit(late)
    assert ledger.admit_all(driver, 1)[0].run == run_id


@pytest.mark.rule("A18")
def test_shares_follow_the_weights(make_tenant: Any, make_driver: Any, submit: Any) -> None:
    light, heavy, driver = make_tenant(weight=1), make_tenant(weight=3), make_driver()
    submit(light, 200)
    submit(heavy, 200)
    admitted = [a for _ in range(10) for a in ledger.admit_all(driver, 20)]
    assert abs(sum(a.tenant == light.slug for a in admitted) - 50) <= 3


@pytest.mark.rule("A18")
def test_priority_comes_first_then_the_order_of_submission(make_tenant: Any, make_driver: Any, submit: Any) -> None:
    tenant, driver = make_tenant(), make_driver()
    [a], [b], [c] = submit(tenant), submit(tenant, priority=5), submit(tenant)
    assert [ledger.admit_all(driver, 1)[0].run for _ in range(3)] == [b, a, c]


@pytest.mark.rule("A19")
def test_the_envelope_bounds_slots_memory_and_processors(make_tenant: Any, make_driver: Any, submit: Any) -> None:
    driver = make_driver()
    submit(make_tenant(), 10, resources={"memory_mib": 400, "cpu": 0.7})
    assert len(admit(driver, Envelope(2))) == 2
    assert len(admit(driver, Envelope(8, memory_mib=1000))) == 2
    assert len(admit(driver, Envelope(8, cpu=2.2))) == 3
    assert admit(driver, Envelope(8, memory_mib=399)) == []
    assert admit(driver, Envelope(0)) == []


@pytest.mark.rule("A26")
def test_a_paused_tenant_is_not_admitted_and_keeps_what_runs(make_tenant: Any, make_driver: Any, submit: Any) -> None:
    tenant, driver = make_tenant(5), make_driver()
    submit(tenant, 3)
    held = ledger.start(driver, ledger.admit_all(driver, 1))
    pause_tenant(tenant, actor=SYSTEM, reason="holiday")
    ledger.holds_for(3, lambda: ledger.admit_all(driver) == [])
    assert ledger.state(held[0][0]) == "running"
    resume_tenant(tenant, actor=SYSTEM)
    assert len(ledger.admit_all(driver)) == 2


@pytest.mark.rule("A4", "R8")
@pytest.mark.parametrize("field", ["declared_dead_at", "draining_at"])
def test_a_driver_that_is_dead_or_draining_gets_nothing(make_tenant: Any, submit: Any, field: str) -> None:
    tenant, replica = make_tenant(2), ledger.make_replica()
    [run_id] = submit(tenant)
    Replica.objects.filter(pk=replica.pk).update(**{field: replica.beat_at})
    with pytest.raises(DriverGone):
        ledger.admit_all(replica_driver(replica))
    assert ledger.state(run_id) == "queued"
    ledger.assert_conserved()


@pytest.mark.rule("A13", "A22")
def test_a_broken_counter_keeps_its_tenant_queued_and_the_others_are_admitted(
    make_tenant: Any, make_driver: Any, submit: Any
) -> None:
    broken, sound = make_tenant(), make_tenant(2)
    [stuck], runs = submit(broken), submit(sound, 2)
    with connection.cursor() as cursor:
        check = f"CHECK (tenant_id <> {broken.pk} OR start_tag < 0) NOT VALID"
        cursor.execute(f"ALTER TABLE admission_counter ADD CONSTRAINT broken {check}")
    try:
        assert sorted(a.run for a in ledger.admit_all(make_driver())) == runs
        ledger.holds_for(3, lambda: ledger.admit_all(make_driver()) == [])
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE admission_counter DROP CONSTRAINT broken")
    assert ledger.state(stuck) == "queued"
    ledger.assert_conserved()
    assert [a.run for a in ledger.admit_all(make_driver())] == [stuck]


@pytest.mark.rule("G3", "A13")
def test_a_missing_counter_admits_nothing_of_its_tenant(make_tenant: Any, make_driver: Any, submit: Any) -> None:
    tenant = make_tenant(2)
    submit(tenant, concurrency_key="k")
    Counter.objects.filter(scope="key").delete()
    ledger.holds_for(3, lambda: ledger.admit_all(make_driver()) == [])


@pytest.mark.rule("A10")
def test_an_outage_during_admission_is_reported_and_not_taken_for_nothing_to_do(
    make_tenant: Any, make_driver: Any, submit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_driver()
    submit(make_tenant(2), 2)

    def cut(*_: Any) -> Any:
        connection.connection.close()
        raise DatabaseError("the server closed the connection")

    with monkeypatch.context() as patched:
        patched.setattr(engine, "_write", cut)
        with pytest.raises(DatabaseError):
            ledger.admit_all(driver)
    connection.close()
    assert len(ledger.admit_all(driver)) == 2
    ledger.assert_conserved()


@pytest.mark.rule("A10")
def test_what_was_admitted_is_told_even_when_the_tidying_after_it_fails(
    make_tenant: Any, make_driver: Any, submit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(make_tenant(2), 2)

    def fail(*_: Any) -> Any:
        raise DatabaseError("lock timeout")

    monkeypatch.setattr(engine, "clear_backlogs", fail)
    assert len(ledger.admit_all(make_driver())) == 2


@pytest.mark.rule("A25")
@pytest.mark.parametrize(
    "spec", [{}, {"command": []}, {"command": ["x"], "image": ""}, {"command": ["x"], "backend": "moon"}, "text", 7]
)
def test_a_broken_row_is_set_aside_with_its_reason_and_the_next_is_served(
    make_tenant: Any, make_driver: Any, submit: Any, spec: Any
) -> None:
    tenant = make_tenant(1)
    broken, good = submit(tenant, 2)
    Run.objects.filter(pk=broken).update(spec=spec)
    assert [a.run for a in ledger.admit_all(make_driver(), 1)] == [good]
    row = ledger.run(broken)
    assert (row.state, row.reason) == ("failed", "invalid_spec")
    assert row.detail
    assert ledger.in_flight(tenant) == 1
    ledger.assert_conserved()


@pytest.mark.rule("A25")
def test_a_row_for_a_backend_that_nobody_knows_is_set_aside(make_tenant: Any, make_driver: Any, submit: Any) -> None:
    broken, good = submit(make_tenant(1), 2)
    Run.objects.filter(pk=broken).update(backend="moon", spec={"command": ["x"], "backend": "moon"})
    assert [a.run for a in ledger.admit_all(make_driver(), 1)] == [good]
    assert ledger.run(broken).reason == "invalid_spec"


@pytest.mark.rule("A25")
def test_the_reason_of_a_broken_row_tells_no_value(make_tenant: Any, make_driver: Any, submit: Any) -> None:
    [broken] = submit(make_tenant())
    Run.objects.filter(pk=broken).update(spec={"command": ["x"], "env": {"TOKEN": {"a": "hunter2"}}})
    ledger.admit_all(make_driver())
    assert "env.TOKEN" in ledger.run(broken).detail
    assert "hunter2" not in ledger.run(broken).detail


@pytest.mark.rule("A30")
def test_the_history_gives_the_highest_concurrency_a_tenant_ever_had(
    make_tenant: Any, make_driver: Any, submit: Any
) -> None:
    tenant, driver = make_tenant(3), make_driver()
    submit(tenant, 12)
    for _ in range(4):
        ledger.succeed(driver, ledger.start(driver, ledger.admit_all(driver)))
    assert read_highest_concurrency(tenant.pk) == 3
    assert Attempt.objects.filter(tenant=tenant, released_at__isnull=True).count() == 0
    set_quota(tenant, 5, actor=SYSTEM)
    submit(tenant, 9)
    ledger.admit_all(driver)
    assert read_highest_concurrency(tenant.pk) == 5


@pytest.mark.rule("A22")
def test_admitting_a_hundred_takes_as_many_statements_as_admitting_one(
    make_tenant: Any, make_driver: Any, submit: Any
) -> None:
    tenants, driver = [make_tenant(100) for _ in range(10)], make_driver()
    for tenant in tenants:
        submit(tenant, 30)
    counts = []
    for slots in (1, 100):
        with CaptureQueriesContext(
            connection,
        ) as captured:
            assert len(ledger.admit_all(driver, slots)) == slots
        counts.append(len(captured))
    # The reading, BEGIN, the driver, tenants and runs, counters, the admission, COMMIT.
    assert counts == [7, 7]


@pytest.mark.rule("A22")
def test_settling_a_hundred_takes_one_statement(make_tenant: Any, make_driver: Any, submit: Any) -> None:
    driver = make_driver()
    submit(make_tenant(100), 100)
    held = ledger.start(driver, ledger.admit_all(driver))
    with CaptureQueriesContext(connection) as captured:
        ledger.succeed(driver, held)
    assert len(captured) == 1


@pytest.mark.rule("G10")
def test_defaults_admit_on_the_real_database(make_tenant: Any, make_driver: Any, submit: Any) -> None:
    submit(make_tenant(1), 1)
    assert connection.vendor == "postgresql"
    assert len(ledger.admit_all(make_driver())) == 1


@pytest.mark.rule("A18")
def test_what_was_admitted_comes_in_the_order_of_its_planning(
    make_tenant: Callable[..., Tenant], make_driver: Callable[..., Driver]
) -> None:
    tenant = make_tenant()
    late, early = ledger.submit(tenant, 5), ledger.submit(tenant, 5, priority=10)
    # Another physical order than the queue's, so that the statement's own order would show.
    Run.objects.filter(pk__in=early[::2]).update(detail="moved")
    assert [a.run for a in ledger.admit_all(make_driver())] == early + late
