"""Many processes against one ledger (the long form is in tests/soak)."""

from __future__ import annotations

import os
from typing import Any

import pytest

from admission.services.readings import read_highest_concurrency
from tests import ledger
from tests.races.attack import LIMITS, QUEUE, attack

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.xdist_group("attack")]

SECONDS = float(os.environ.get("WHARFINGER_ATTACK_SECONDS", "8"))


def withstand(seconds: float, url: str) -> None:
    """Attack for so long; nothing may ever be seen to be wrong, and everything that was meant to happen did."""
    tenants = besieged()
    report = attack(seconds, tenants=tenants, url=url)
    print(report)
    assert report.failures == []
    assert report.violations == 0
    assert report.samples > 5 * seconds
    for deed in ("granted", "held", "refused", "admitted", "connection lost", "backend killed"):
        assert report.deeds[deed] > 0, report
    assert report.deeds["deadlock"] == 0
    ledger.assert_conserved()
    for tenant, limit in zip(tenants, LIMITS, strict=True):
        assert read_highest_concurrency(tenant.pk) <= limit


def besieged() -> list[Any]:
    tenants = [ledger.make_tenant(limit) for limit in LIMITS]
    for tenant in tenants:
        ledger.submit(tenant, QUEUE, retry={"backoff_seconds": 0})
    return tenants


@pytest.mark.rule("A4", "A5", "A6", "A8", "A30", "G1", "G6", "G8")
def test_under_attack_every_counter_equals_its_permits_and_no_limit_is_passed_at_any_sample(database_url: str) -> None:
    withstand(SECONDS, database_url)


@pytest.mark.rule("A5", "A6")
@pytest.mark.parametrize("variant", ["counter first", "limit read first"])
def test_without_a_guard_the_same_attack_is_seen_to_break_the_ledger(database_url: str, variant: str) -> None:
    report = attack(20, tenants=besieged(), url=database_url, variant=variant, seen_enough=True)
    assert report.violations > 0
