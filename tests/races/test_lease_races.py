"""Pairs of verbs over leases, quotas and deletion, each made to meet in both orders."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from admission.models import Permit, Tenant
from admission.services.deleting import delete_tenant
from admission.services.permits import ClaimOutcome, claim_permit
from admission.services.quotas import set_quota
from admission.services.reaping import reap_run_permits
from admission.sql import permits as sql
from controlplane.core.audit import SYSTEM
from controlplane.core.errors import Conflict, NotFound
from controlplane.core.models import Hold
from tests import ledger
from tests.races.test_permit_races import claim, parameters
from tests.races.test_run_races import Meeting

pytestmark = pytest.mark.django_db(transaction=True)


class Lapsed(Meeting):
    """The meeting of a run whose permit lapsed, with a reaper that may act."""

    def __init__(self, connect: Any, *, started: bool = True) -> None:
        super().__init__(connect, started=started)
        Permit.objects.update(renewed_at=timezone.now() - timedelta(hours=1))
        now = timezone.now()
        Hold.objects.update_or_create(name="permit_reap", defaults={"sign_at": now, "until": now, "taken_for": None})

    def reap(self) -> int:
        return int(reap_run_permits().counts["runs"])


@pytest.mark.rule("A11", "R8", "G6")
def test_a_renewal_behind_the_reaper_is_told_that_the_hold_is_gone(connect: Any) -> None:
    m = Lapsed(connect)
    assert m.in_order(m.reap, m.renew) == (1, "superseded")
    m.check("queued")


@pytest.mark.rule("A11", "R8", "G6")
def test_a_renewal_ahead_of_the_reaper_saves_the_run(connect: Any) -> None:
    m = Lapsed(connect)
    assert m.in_order(m.renew, m.reap) == ("ok", 0)
    m.check("running")


@pytest.mark.rule("A8", "A11", "R8")
def test_a_result_behind_the_reaper_is_superseded_and_frees_nothing_twice(connect: Any) -> None:
    m = Lapsed(connect)
    assert m.in_order(m.reap, m.settle) == (1, "superseded")
    m.check("queued")


@pytest.mark.rule("A8", "A11", "R8")
def test_a_result_ahead_of_the_reaper_stands(connect: Any) -> None:
    m = Lapsed(connect)
    assert m.in_order(m.settle, m.reap) == ("ok", 0)
    m.check("succeeded")


@pytest.mark.rule("A10", "A11", "A28")
def test_a_start_behind_the_reaper_is_refused(connect: Any) -> None:
    m = Lapsed(connect, started=False)
    assert m.in_order(m.reap, m.start) == (1, "superseded")
    m.check("queued")


@pytest.mark.rule("A11")
def test_a_start_ahead_of_the_reaper_renews_and_keeps_the_run(connect: Any) -> None:
    m = Lapsed(connect, started=False)
    assert m.in_order(m.start, m.reap) == ("ok", 0)
    m.check("running")


@pytest.mark.rule("A11", "A28")
def test_a_cancel_ahead_of_the_reaper_ends_the_run_with_the_takeover(connect: Any) -> None:
    m = Lapsed(connect)
    assert m.in_order(m.cancel, m.reap) == ({m.run: "running"}, 1)
    m.check("cancelled")


@pytest.mark.rule("A12", "A11")
def test_a_reaper_and_an_operator_take_a_run_once(connect: Any) -> None:
    m = Lapsed(connect)
    assert m.in_order(m.reap, m.take) == (1, [])
    m.check("queued")
    assert ledger.run(m.run).tries == 1


@pytest.mark.rule("A14", "A5")
def test_a_first_quota_counts_a_claim_that_was_under_way(make_tenant: Any, connect: Any) -> None:
    tenant, claiming, observer = make_tenant(), connect(), connect(autocommit=True)
    claiming.execute(sql.CLAIM_PERMIT.encode(), parameters(tenant, "ext:a", 2))
    quota = ledger.Concurrent(set_quota, tenant, 1, actor=SYSTEM)
    ledger.until_waiting(observer, quota)
    claiming.commit()
    assert (quota.result().in_flight, quota.result().over) == (2, 1)
    assert claim(tenant, "ext:b") == ClaimOutcome.REFUSED
    ledger.assert_conserved()


@pytest.mark.rule("A14", "A4")
def test_a_claim_that_waits_for_a_first_quota_is_judged_by_it(make_tenant: Any, connect: Any) -> None:
    tenant, gate, observer = make_tenant(), connect(), connect(autocommit=True)
    gate.execute("SELECT FROM admission_counter WHERE key = %s FOR NO KEY UPDATE", (str(tenant.pk),))
    quota = ledger.Concurrent(set_quota, tenant, 1, actor=SYSTEM)
    ledger.until_waiting(observer, quota)
    late = ledger.Concurrent(claim, tenant, "ext:a", 2)
    ledger.until_waiting(observer, late)
    gate.commit()
    assert quota.result().after == 1
    assert late.result() == ClaimOutcome.REFUSED
    assert ledger.permits(tenant) == 0
    ledger.assert_conserved()


@pytest.mark.rule("A15", "A4")
def test_a_raised_limit_counts_from_its_commit_and_nobody_waits_for_it(make_tenant: Any, connect: Any) -> None:
    tenant, operator = make_tenant(1), connect()
    claim(tenant, "ext:a")
    operator.execute('UPDATE admission_counter SET "limit" = 2 WHERE tenant_id = %s', (tenant.pk,))
    assert claim(tenant, "ext:b") == ClaimOutcome.REFUSED
    operator.commit()
    assert claim(tenant, "ext:b") == ClaimOutcome.GRANTED
    ledger.assert_conserved()


@pytest.mark.rule("A26", "A9")
def test_deleting_a_tenant_waits_for_a_claim_under_way_and_is_refused(make_tenant: Any, connect: Any) -> None:
    tenant, claiming, observer = make_tenant(1), connect(), connect(autocommit=True)
    claiming.execute(sql.CLAIM_PERMIT.encode(), parameters(tenant, "ext:a"))
    deletion = ledger.Concurrent(delete_tenant, tenant, actor=SYSTEM, reason="a test")
    ledger.until_waiting(observer, deletion)
    claiming.commit()
    with pytest.raises(Conflict):
        deletion.result()
    assert Tenant.objects.filter(pk=tenant.pk, deleting_at__isnull=True).exists()
    assert ledger.in_flight(tenant) == 1
    ledger.assert_conserved()


@pytest.mark.rule("A26", "A9")
def test_a_claim_behind_a_deletion_finds_no_tenant_and_leaves_no_permit(make_tenant: Any, connect: Any) -> None:
    tenant, gate, observer = make_tenant(1), connect(), connect(autocommit=True)
    # A verb under way holds the tenant; the deletion waits for it.
    gate.execute("SELECT FROM admission_tenant WHERE id = %s FOR KEY SHARE", (tenant.pk,))
    deletion = ledger.Concurrent(delete_tenant, tenant, actor=SYSTEM, reason="a test")
    ledger.until_waiting(observer, deletion)
    gate.commit()
    assert deletion.result() is True
    with pytest.raises(NotFound):
        claim_permit("ext:a", tenant_id=tenant.pk)
    assert not Permit.objects.exists()
    assert not Tenant.objects.filter(pk=tenant.pk).exists()


@pytest.mark.rule("A26", "A9")
def test_a_claim_that_waits_for_the_mark_of_a_deletion_is_refused_by_it(make_tenant: Any, connect: Any) -> None:
    tenant, marking, observer = make_tenant(1), connect(), connect(autocommit=True)
    marking.execute("SELECT FROM admission_tenant WHERE id = %s FOR UPDATE", (tenant.pk,))
    marking.execute("UPDATE admission_tenant SET deleting_at = now() WHERE id = %s", (tenant.pk,))
    late = ledger.Concurrent(claim_permit, "ext:a", tenant_id=tenant.pk)
    ledger.until_waiting(observer, late)
    marking.commit()
    with pytest.raises(NotFound):
        late.result()
    assert not Permit.objects.exists()
    assert ledger.in_flight(tenant) == 0
