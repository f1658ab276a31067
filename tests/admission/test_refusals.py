"""A refusal reaps its own limit's lapsed permits, and the claim is tried once more (rule A12)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from admission.engine import Envelope
from admission.models import Counter, Permit
from admission.services import reaping
from admission.services.permits import ClaimOutcome, claim_permit
from admission.services.quotas import set_quota
from admission.services.reaping import reap_limit, reap_refusing
from admission.services.runs import renew_runs
from admission.services.sweeps import release_delayed
from admission.states import Scope
from controlplane.core.audit import SYSTEM
from controlplane.core.errors import InvalidInput
from controlplane.core.models import Hold
from runners.models import Runner
from runners.services.claims import claim_runs
from tests import ledger

pytestmark = pytest.mark.django_db(transaction=True)

GRANTED, REFUSED = ClaimOutcome.GRANTED, ClaimOutcome.REFUSED
HOUR = timedelta(hours=1)
Submit = Callable[..., list[int]]


@pytest.fixture(autouse=True)
def _ready() -> None:
    """The leader's pass has looked just now and holds nothing; nobody has looked for refusals yet."""
    stands = {"sign_at": timezone.now(), "until": timezone.now(), "taken_for": None}
    Hold.objects.update_or_create(name=reaping.HOLD, defaults=stands)
    reaping.looks.forget()


def claim(tenant: Any, name: str) -> ClaimOutcome:
    return claim_permit(f"ext:{tenant.pk}:{name}", tenant_id=tenant.pk, lapse_seconds=60).outcome


def lapse(**which: Any) -> None:
    assert Permit.objects.filter(**which).update(renewed_at=timezone.now() - HOUR)


@pytest.mark.rule("A12", "A23")
def test_a_refused_claim_frees_the_lapsed_permits_of_its_own_limit_and_is_granted(make_tenant: Any) -> None:
    tenant, other = make_tenant(2), make_tenant(1)
    assert [claim(tenant, name) for name in "ab"] == [GRANTED] * 2
    claim(other, "c")
    lapse(holder=f"ext:{tenant.pk}:a")
    lapse(tenant=other)
    assert claim(tenant, "d") == GRANTED
    assert claim(tenant, "e") == REFUSED, "b lives"
    assert sorted(Permit.objects.values_list("holder", flat=True)) == sorted(
        [f"ext:{tenant.pk}:b", f"ext:{tenant.pk}:d", f"ext:{other.pk}:c"]
    ), "another limit's are not this refusal's to reap"
    ledger.assert_conserved()


@pytest.mark.rule("A12", "A11", "R8")
def test_a_refused_claim_takes_over_a_run_whose_permit_lapsed(
    make_tenant: Any, make_driver: Any, submit: Submit
) -> None:
    tenant, driver = make_tenant(2), make_driver()
    lost, kept = submit(tenant, 2)
    held = dict(ledger.start(driver, ledger.admit_all(driver)))
    lapse(run_id=lost)
    assert claim(tenant, "a") == GRANTED
    assert (ledger.state(lost), ledger.run(lost).reason, ledger.state(kept)) == ("queued", "permit_lapse", "running")
    assert renew_runs(driver, [(lost, held[lost])])[lost, held[lost]] == "superseded"
    ledger.assert_conserved()


@pytest.mark.rule("A11", "A12")
def test_nothing_is_reaped_while_the_pass_holds_still_or_does_not_run(make_tenant: Any) -> None:
    tenant = make_tenant(1)
    claim(tenant, "a")
    lapse(tenant=tenant)
    Hold.objects.update(until=timezone.now() + HOUR)
    assert claim(tenant, "b") == REFUSED
    Hold.objects.all().delete()
    assert claim(tenant, "b") == REFUSED, "unknown is no"


@pytest.mark.rule("A12")
def test_a_driver_with_free_slots_frees_a_tenant_at_its_cap(
    make_tenant: Any, make_driver: Any, submit: Submit
) -> None:
    tenant, silent, living = make_tenant(1), make_driver(), make_driver()
    first, second = submit(tenant, 2, retry={"backoff_seconds": 60})
    ledger.start(silent, ledger.admit_all(silent, 1))
    reaping.looks.forget()
    assert ledger.admit_all(living) == [], "its holder lives"
    lapse(run_id=first)
    reaping.looks.forget()
    assert [a.run for a in ledger.admit_all(living)] == [second]
    assert (ledger.state(first), ledger.run(first).tries) == ("queued", 1)
    assert ledger.in_flight(tenant) == 1
    ledger.assert_conserved()


@pytest.mark.rule("A12", "A20")
def test_a_driver_that_got_some_frees_a_full_key_for_the_rest(
    make_tenant: Any, make_driver: Any, submit: Submit
) -> None:
    tenant, silent, living = make_tenant(), make_driver(), make_driver()
    [stuck] = submit(tenant, concurrency_key="deploy", retry={"backoff_seconds": 60})
    ledger.start(silent, ledger.admit_all(silent))
    lapse(run_id=stuck)
    [waits], [free] = submit(tenant, concurrency_key="deploy"), submit(tenant)
    reaping.looks.forget()
    assert [a.run for a in ledger.admit_all(living)] == [free, waits]
    ledger.assert_conserved()


@pytest.mark.rule("A12", "Q3")
def test_a_runners_claim_frees_a_tenant_at_its_cap(make_tenant: Any, make_driver: Any, submit: Submit) -> None:
    tenant, silent, known = make_tenant(1), make_driver(), make_driver("runner")
    row = Runner.objects.create(name="rack", shown="x", hash=b"h" * 32, executors=["docker"])
    runner = replace(known, id=row.pk)
    first, second = submit(tenant, 2, retry={"backoff_seconds": 60})
    ledger.start(silent, ledger.admit_all(silent, 1))
    lapse(run_id=first)
    reaping.looks.forget()
    claimed = claim_runs(runner, "one", Envelope(2))
    assert claimed is not None
    assert [c.run for c in claimed] == [second]
    ledger.assert_conserved()


@pytest.mark.rule("A12")
def test_idle_drivers_look_once_a_second_and_an_unlimited_counter_refuses_nobody(
    make_tenant: Any, django_assert_num_queries: Any
) -> None:
    tenant = make_tenant()
    claim(tenant, "a")
    lapse(tenant=tenant)
    with django_assert_num_queries(1):
        assert [reap_refusing() for _ in range(5)] == [0] * 5
    set_quota(tenant, 1, actor=SYSTEM)
    reaping.looks.forget()
    assert reap_refusing() == 1
    assert Counter.objects.get(tenant=tenant).in_flight == 0


@pytest.mark.rule("A12", "A11")
def test_two_refusals_at_once_free_a_lapsed_permit_once(make_tenant: Any, connect: Any) -> None:
    tenant = make_tenant(1)
    claim(tenant, "a")
    lapse(tenant=tenant)
    calls = [ledger.Concurrent(reap_limit, Scope.TENANT, str(tenant.pk)) for _ in range(4)]
    assert sum(call.result() for call in calls) == 1
    assert ledger.in_flight(tenant) == 0
    ledger.assert_conserved()


@pytest.mark.rule("A12", "A11")
def test_a_reap_of_runs_and_a_renewal_at_once_agree(make_tenant: Any, make_driver: Any, submit: Submit) -> None:
    tenant, driver = make_tenant(3), make_driver()
    for _ in range(10):
        runs = submit(tenant, 3, retry={"backoff_seconds": 0})
        held = ledger.start(driver, ledger.admit_all(driver))
        lapse(run_id__in=runs)
        reap = ledger.Concurrent(reap_limit, Scope.TENANT, str(tenant.pk))
        renewal = ledger.Concurrent(renew_runs, driver, held)
        reap.result()
        verdicts = renewal.result()
        for run, epoch in held:
            kept = ledger.state(run) == "running"
            assert kept is (ledger.run(run).epoch == epoch)
            assert kept <= (verdicts[run, epoch] == "ok")
        ledger.assert_conserved()
        Permit.objects.update(renewed_at=timezone.now())
        ledger.succeed(driver, [h for h in held if ledger.state(h[0]) == "running"])
        set_quota(tenant, 3, actor=SYSTEM)
        while left := ledger.admit_all(driver):
            ledger.succeed(driver, ledger.start(driver, left))
        release_delayed()
        while left := ledger.admit_all(driver):
            ledger.succeed(driver, ledger.start(driver, left))


@pytest.mark.rule("A23")
@pytest.mark.parametrize("lease", [0, 0.5, -1, 7 * 86_400 + 1, float("nan"), float("inf"), True, "60"])
def test_a_lease_out_of_range_is_refused(make_tenant: Any, lease: Any) -> None:
    tenant = make_tenant(1)
    with pytest.raises(InvalidInput, match="lease"):
        claim_permit("ext:a", tenant_id=tenant.pk, lapse_seconds=lease)
