"""Permits by identity: claim, claim again, release, refuse."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from admission.models import Counter, Permit
from admission.services.conservation import audit_conservation
from admission.services.limits import set_key_limit
from admission.services.permits import (
    ClaimOutcome,
    claim_permit,
    force_release_permit,
    release_permit,
    renew_permits,
)
from admission.services.quotas import set_quota
from controlplane.core.audit import SYSTEM
from controlplane.core.errors import Conflict, InvalidInput, NotFound
from controlplane.core.models import AuditEntry
from tests import ledger

pytestmark = pytest.mark.django_db(transaction=True)

GRANTED, HELD, REFUSED = ClaimOutcome.GRANTED, ClaimOutcome.HELD, ClaimOutcome.REFUSED


def claim(tenant: Any, holder: str, weight: int = 1) -> ClaimOutcome:
    return claim_permit(holder, tenant_id=tenant.pk, weight=weight).outcome


@pytest.mark.rule("A4", "A5")
def test_the_limit_decides_and_a_refused_claim_leaves_no_row(make_tenant: Any) -> None:
    tenant = make_tenant(2)
    assert [claim(tenant, f"ext:{n}") for n in range(3)] == [GRANTED, GRANTED, REFUSED]
    assert ledger.in_flight(tenant) == 2
    assert not Permit.objects.filter(holder="ext:2").exists()
    ledger.assert_conserved()


@pytest.mark.rule("A6")
def test_the_same_id_again_is_the_same_right_and_counts_once(make_tenant: Any) -> None:
    tenant = make_tenant(1)
    assert [claim(tenant, "ext:a") for _ in range(4)] == [GRANTED, HELD, HELD, HELD]
    assert ledger.in_flight(tenant) == 1
    ledger.assert_conserved()


@pytest.mark.rule("A7")
def test_the_same_id_with_another_tenant_or_weight_is_a_conflict(make_tenant: Any) -> None:
    tenant, other = make_tenant(5), make_tenant(5)
    claim(tenant, "ext:a", 2)
    with pytest.raises(Conflict):
        claim(tenant, "ext:a", 3)
    with pytest.raises(Conflict):
        claim(other, "ext:a", 2)
    assert (ledger.in_flight(tenant), ledger.in_flight(other)) == (2, 0)
    ledger.assert_conserved()


@pytest.mark.rule("A8")
def test_release_is_by_identity_and_answers_what_it_did(make_tenant: Any) -> None:
    tenant, other = make_tenant(5), make_tenant(5)
    claim(tenant, "ext:a", 3)
    assert release_permit("ext:a", tenant_id=other.pk) is False
    assert release_permit("ext:a", tenant_id=tenant.pk) is True
    assert release_permit("ext:a", tenant_id=tenant.pk) is False
    assert ledger.in_flight(tenant) == 0
    ledger.assert_conserved()


@pytest.mark.rule("A8")
def test_release_subtracts_what_was_claimed_not_what_the_limit_is_now(make_tenant: Any) -> None:
    tenant = make_tenant(5)
    claim(tenant, "ext:a", 3)
    set_quota(tenant, 1, actor=SYSTEM)
    assert release_permit("ext:a", tenant_id=tenant.pk) is True
    assert ledger.in_flight(tenant) == 0


@pytest.mark.rule("A8")
def test_an_outside_release_cannot_free_the_permit_of_a_run(make_tenant: Any, make_driver: Any, submit: Any) -> None:
    tenant = make_tenant(1)
    [run] = submit(tenant)
    ledger.admit_all(make_driver())
    assert release_permit(f"{run}.1", tenant_id=tenant.pk) is False
    assert ledger.in_flight(tenant) == 1
    ledger.assert_conserved()


@pytest.mark.rule("A6")
def test_an_outside_id_cannot_take_the_id_of_a_run(make_tenant: Any) -> None:
    tenant = make_tenant(1)
    for holder in ("1.1", "", "ext:", "ext:a\x00", "ext:" + "x" * 300):
        with pytest.raises(InvalidInput):
            claim(tenant, holder)


@pytest.mark.rule("A8")
def test_the_database_refuses_a_negative_counter(make_tenant: Any) -> None:
    tenant = make_tenant(1)
    with pytest.raises(IntegrityError, match="counter_not_negative"), transaction.atomic():
        Counter.objects.filter(tenant=tenant).update(in_flight=-1)
    assert ledger.in_flight(tenant) == 0


@pytest.mark.rule("A8")
def test_no_clamp_hides_a_double_decrement(make_tenant: Any) -> None:
    tenant = make_tenant(3)
    claim(tenant, "ext:a", 2)
    Counter.objects.filter(tenant=tenant).update(in_flight=1)  # as if somebody had decremented already
    with pytest.raises(IntegrityError, match="counter_not_negative"):
        release_permit("ext:a", tenant_id=tenant.pk)
    assert Permit.objects.filter(holder="ext:a").exists()


@pytest.mark.rule("A14")
def test_quota_zero_refuses_every_claim(make_tenant: Any) -> None:
    tenant = make_tenant(0)
    assert claim(tenant, "ext:a") == REFUSED
    assert ledger.permits(tenant) == 0


@pytest.mark.rule("A14")
def test_without_a_quota_outside_claims_are_counted_and_never_refused(make_tenant: Any) -> None:
    tenant = make_tenant()
    assert {claim(tenant, f"ext:{n}", 1000) for n in range(5)} == {GRANTED}
    assert ledger.in_flight(tenant) == 5000
    ledger.assert_conserved()


@pytest.mark.rule("A4")
@pytest.mark.parametrize("weight", [0, -1, 1.5, True, "2", 2**31, None])
def test_a_weight_that_is_no_whole_number_in_range_is_refused(make_tenant: Any, weight: Any) -> None:
    tenant = make_tenant(5)
    with pytest.raises(InvalidInput, match="whole number"):
        claim(tenant, "ext:a", weight)


@pytest.mark.rule("A4")
@pytest.mark.parametrize("quota", [5, None])
def test_weights_whose_sum_exceeds_the_column_are_refused_not_an_error(make_tenant: Any, quota: int | None) -> None:
    tenant = make_tenant(quota)
    claim(tenant, "ext:a", 1)
    assert claim(tenant, "ext:b", 2**31 - 1) == REFUSED
    assert ledger.in_flight(tenant) == 1


@pytest.mark.rule("G3")
def test_a_missing_counter_is_no_permission(make_tenant: Any) -> None:
    tenant = make_tenant(5)
    answer = claim_permit("ext:a", tenant_id=tenant.pk, key="no such counter")
    assert answer.outcome == REFUSED
    assert ledger.permits(tenant) == 0


@pytest.mark.rule("G3")
def test_an_unknown_tenant_holds_nothing() -> None:
    with pytest.raises(NotFound):
        claim_permit("ext:a", tenant_id=10**9)
    assert not Permit.objects.exists()


@pytest.mark.rule("A5")
def test_a_claim_that_fails_behind_the_insert_leaves_neither_row_nor_count(make_tenant: Any) -> None:
    tenant = make_tenant(5)
    transaction.set_autocommit(False)
    claim(tenant, "ext:a")
    connection.close()
    assert (ledger.permits(tenant), ledger.in_flight(tenant)) == (0, 0)
    ledger.assert_conserved()


@pytest.mark.rule("A11")
def test_renewal_answers_exactly_what_is_still_held(make_tenant: Any) -> None:
    tenant = make_tenant(5)
    claim(tenant, "ext:a")
    before = Permit.objects.get(holder="ext:a").renewed_at
    assert set(renew_permits(["ext:a", "ext:gone"], tenant_id=tenant.pk)) == {"ext:a"}
    assert Permit.objects.get(holder="ext:a").renewed_at > before


@pytest.mark.rule("O2", "A17")
def test_what_bears_the_longest_names_can_be_released_limited_and_repaired_with_an_entry(make_tenant: Any) -> None:
    tenant, longest = make_tenant(3), "k" * 200
    holder = f"ext:{tenant.pk}:{'p' * 200}"
    claim_permit(holder, tenant_id=tenant.pk)
    assert force_release_permit(Permit.objects.get(holder=holder), actor=SYSTEM, reason="it is stuck")
    set_key_limit(tenant, longest, 2, actor=SYSTEM, reason="a shared licence")
    Counter.objects.filter(scope="key").update(in_flight=1)
    assert audit_conservation().counts["repaired"] == 1
    subjects = AuditEntry.objects.values_list("subject", flat=True)
    assert {holder, f"{tenant.slug}:{longest}", f"key {tenant.pk}:{longest}"} <= set(subjects)
