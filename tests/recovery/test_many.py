"""Many orphans of one dead replica: in bounded transactions, and quickly."""

from __future__ import annotations

import json
import time
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from recovery.models import Replica
from recovery.services.reconcile import reconcile
from tests import ledger
from tests.recovery import world

pytestmark = pytest.mark.django_db(transaction=True)


def reclaim_many(count: int, most_seconds: float) -> float:
    """So many orphans of one dead replica, in bounded transactions, timed."""
    tenant = ledger.make_tenant(count)
    lively = ledger.make_replica(name="lively", machine="lively")
    Replica.objects.filter(pk=lively.pk).update(started_at=timezone.now() - timedelta(hours=1))
    dead, _ = world.dead_replica(tenant, 1)
    with connection.cursor() as cursor:
        cursor.execute(MANY, {"tenant": tenant.pk, "dead": dead.pk, "count": count - 1})
    began = time.monotonic()
    report = reconcile(claimant="one", by="a test")
    took = time.monotonic() - began
    assert (report.requeued, report.finished) == (count, [dead.name])
    assert ledger.in_flight(tenant) == ledger.permits(tenant) == 0
    assert took < most_seconds
    ledger.assert_conserved()
    return took


# Copies of the one run that the dead replica holds, with their attempts and permits.
MANY = """
WITH one AS (SELECT * FROM admission_run WHERE driver_id = %(dead)s LIMIT 1),
made AS (
    INSERT INTO admission_run (tenant_id, spec, labels, rank_at, backend, harness, concurrency_key, weight, state,
                               epoch, attempt, tries, driver_kind, driver_id, driver_incarnation, driver_name,
                               max_tries, retry_on_interrupt, timeout_seconds, started_at)
    SELECT tenant_id, spec, labels, rank_at, backend, harness, concurrency_key, weight, state, epoch, attempt, tries,
           driver_kind, driver_id, driver_incarnation, driver_name, max_tries, retry_on_interrupt, timeout_seconds,
           started_at
    FROM one, generate_series(1, %(count)s) RETURNING id, attempt
),
attempted AS (
    INSERT INTO admission_attempt (run_id, number, tenant_id, epoch, weight, driver_kind, driver_id, admitted_at,
                                   started_at)
    SELECT m.id, m.attempt, %(tenant)s, 1, 1, 'replica', %(dead)s, statement_timestamp(), statement_timestamp()
    FROM made m
),
permitted AS (
    INSERT INTO admission_permit (tenant_id, scope, key, holder, run_id, attempt, weight, lapse_seconds, driver_name,
                                  acquired_at, renewed_at)
    SELECT p.tenant_id, p.scope, p.key, m.id || '.' || m.attempt, m.id, m.attempt, p.weight, p.lapse_seconds,
           p.driver_name, p.acquired_at, p.renewed_at
    FROM made m, admission_permit p WHERE p.tenant_id = %(tenant)s
)
UPDATE admission_counter SET in_flight = in_flight + %(count)s WHERE tenant_id = %(tenant)s AND scope = 'tenant'
"""


@pytest.mark.rule("R6", "R8", "A8")
def test_a_thousand_orphans_are_reclaimed_in_bounded_transactions() -> None:
    reclaim_many(1000, most_seconds=30)


@pytest.mark.soak
@pytest.mark.rule("R6", "R8", "A8")
def test_ten_thousand_orphans_are_reclaimed_in_five_seconds() -> None:
    print(json.dumps({"orphans": 10_000, "seconds": round(reclaim_many(10_000, most_seconds=5), 2)}))
