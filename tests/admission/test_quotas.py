"""Quotas: first, changed, removed."""

from __future__ import annotations

from typing import Any

import pytest

from admission.models import Permit
from admission.services.limits import set_key_limit
from admission.services.permits import claim_permit
from admission.services.quotas import preview_quota, remove_quota, set_quota
from controlplane.core.audit import SYSTEM
from controlplane.core.errors import Conflict, InvalidInput
from controlplane.core.models import AuditEntry
from tests import ledger

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.rule("A14")
@pytest.mark.parametrize(
    "value", [1.5, "1.5", -1, "-1", True, None, "", "three", 2**31, "2147483648", "9" * 5000, "٣"]
)
def test_a_quota_that_is_no_whole_number_in_range_is_refused_with_a_message(make_tenant: Any, value: Any) -> None:
    tenant = make_tenant()
    with pytest.raises(InvalidInput, match="whole number from 0 to 2147483647"):
        set_quota(tenant, value, actor=SYSTEM)
    tenant.refresh_from_db()
    assert tenant.has_quota is False


@pytest.mark.rule("A14")
@pytest.mark.parametrize("value", [0, 1, "7", 2**31 - 1])
def test_whole_numbers_from_zero_to_the_columns_range_are_quotas(make_tenant: Any, value: Any) -> None:
    tenant = make_tenant()
    set_quota(tenant, value, actor=SYSTEM)
    assert ledger.counter(tenant).limit == int(value)


@pytest.mark.rule("A14")
def test_quota_zero_admits_nothing(make_tenant: Any, make_driver: Any, submit: Any) -> None:
    tenant, driver = make_tenant(0), make_driver()
    submit(tenant, 3)
    ledger.holds_for(5, lambda: ledger.admit_all(driver) == [])
    assert ledger.permits(tenant) == 0


@pytest.mark.rule("A14")
def test_a_tenant_without_a_quota_never_touches_permits(make_tenant: Any, make_driver: Any, submit: Any) -> None:
    tenant, driver = make_tenant(), make_driver()
    submit(tenant, 5)
    assert len(ledger.admit_all(driver)) == 5
    assert (ledger.permits(tenant), ledger.in_flight(tenant)) == (0, 0)


@pytest.mark.rule("A14", "A5")
def test_a_first_quota_back_fills_what_is_in_flight(make_tenant: Any, make_driver: Any, submit: Any) -> None:
    tenant, driver = make_tenant(), make_driver()
    submit(tenant, 4, weight=2)
    admitted = ledger.admit_all(driver, 3)
    ledger.start(driver, admitted[:1])
    claim_permit("ext:a", tenant_id=tenant.pk)
    change = set_quota(tenant, 5, actor=SYSTEM)
    assert (change.in_flight, change.over) == (7, 2)
    assert Permit.objects.filter(tenant=tenant, run__isnull=False).count() == 3
    ledger.assert_conserved()
    ledger.holds_for(3, lambda: ledger.admit_all(driver) == [])
    ledger.succeed(driver, ledger.start(driver, admitted[1:]))
    assert ledger.in_flight(tenant) == 3
    ledger.assert_conserved()
    assert len(ledger.admit_all(driver)) == 1


@pytest.mark.rule("A14")
def test_removing_a_quota_deletes_the_permits_of_runs_and_touches_no_run(
    make_tenant: Any, make_driver: Any, submit: Any
) -> None:
    tenant, driver = make_tenant(2), make_driver()
    runs = submit(tenant, 3)
    held = ledger.start(driver, ledger.admit_all(driver))
    claim_permit("ext:a", tenant_id=make_tenant(1).pk)
    before = [ledger.run(run).epoch for run in runs]
    change = remove_quota(tenant, actor=SYSTEM)
    assert change is not None
    assert change.before == 2
    assert (ledger.permits(tenant), ledger.in_flight(tenant)) == (0, 0)
    assert [ledger.run(run).epoch for run in runs] == before
    assert [ledger.state(run) for run in runs] == ["running", "running", "queued"]
    assert len(ledger.admit_all(driver)) == 1
    ledger.succeed(driver, held)
    assert ledger.in_flight(tenant) == 0
    ledger.assert_conserved()
    assert remove_quota(tenant, actor=SYSTEM) is None


@pytest.mark.rule("A14", "A5")
def test_removing_a_quota_leaves_the_permits_of_other_systems_counted(make_tenant: Any) -> None:
    tenant = make_tenant(2)
    claim_permit("ext:a", tenant_id=tenant.pk, weight=2)
    remove_quota(tenant, actor=SYSTEM)
    assert ledger.in_flight(tenant) == 2
    ledger.assert_conserved()


@pytest.mark.rule("A15")
def test_lowering_below_what_is_in_flight_kills_nothing_and_admits_nothing_until_drained(
    make_tenant: Any, make_driver: Any, submit: Any
) -> None:
    tenant, driver = make_tenant(4), make_driver()
    submit(tenant, 8)
    held = ledger.start(driver, ledger.admit_all(driver))
    assert preview_quota(tenant, 2).sentence() == "4 in use, new limit 2: 2 over, nothing is killed."
    assert set_quota(tenant, 2, actor=SYSTEM).over == 2
    for left in (3, 2):
        ledger.succeed(driver, [held.pop()])
        ledger.holds_for(3, lambda: ledger.admit_all(driver) == [])
        assert ledger.in_flight(tenant) == left
    ledger.succeed(driver, [held.pop()])
    assert len(ledger.admit_all(driver)) == 1
    ledger.assert_conserved()


@pytest.mark.rule("A15")
def test_raising_a_quota_lets_the_next_drain_admit_at_once(make_tenant: Any, make_driver: Any, submit: Any) -> None:
    tenant, driver = make_tenant(1), make_driver()
    submit(tenant, 5)
    ledger.admit_all(driver)
    assert ledger.admit_all(driver) == []
    set_quota(tenant, 3, actor=SYSTEM)
    assert len(ledger.admit_all(driver)) == 2


@pytest.mark.rule("A15")
def test_every_change_is_audited_with_actor_reason_old_and_new_value(make_tenant: Any) -> None:
    tenant = make_tenant(1)
    set_quota(tenant, 3, actor=SYSTEM, reason="more work")
    entry = AuditEntry.objects.filter(verb="set_quota").latest("id")
    assert (entry.actor, entry.reason) == ("system", "more work")
    assert entry.before == {"quota": 1}
    assert entry.after == {"quota": 3, "in_flight": 0}


@pytest.mark.rule("G6")
def test_a_quota_changed_since_it_was_seen_is_a_conflict(make_tenant: Any) -> None:
    tenant = make_tenant(1)
    with pytest.raises(Conflict):
        set_quota(tenant, 3, actor=SYSTEM, expected=(2,))
    with pytest.raises(Conflict):
        remove_quota(tenant, actor=SYSTEM, expected=(None,))
    assert ledger.counter(tenant).limit == 1


@pytest.mark.rule("A4")
def test_a_run_needs_all_its_limits_or_takes_none(make_tenant: Any, make_driver: Any, submit: Any) -> None:
    tenant, driver = make_tenant(5), make_driver()
    submit(tenant, 3, concurrency_key="deploy")
    set_key_limit(tenant, "deploy", 2, actor=SYSTEM)
    assert len(ledger.admit_all(driver)) == 2
    ledger.holds_for(3, lambda: ledger.admit_all(driver) == [])
    assert ledger.in_flight(tenant) == 2
    assert ledger.permits(tenant) == 4
    ledger.assert_conserved()
