"""Two connections over one permit, each meeting made deterministic: one holds its transaction open, one waits."""

from __future__ import annotations

import re
import threading
from typing import Any

import psycopg
import pytest

from admission.models import Permit
from admission.services.permits import ClaimOutcome, claim_permit, release_permit
from admission.services.quotas import set_quota
from admission.sql import permits as sql
from controlplane.core.audit import SYSTEM
from controlplane.core.errors import Conflict
from tests import ledger

pytestmark = pytest.mark.django_db(transaction=True)

# The statement without its guard: it counts first and inserts with ON CONFLICT DO NOTHING. Kept here to show that the
# tests below can fail; it leaves a weight behind that no permit holds.
UNGUARDED_CLAIM = """
WITH counted AS (
    UPDATE admission_counter c SET in_flight = c.in_flight + %(weight)s
    WHERE c.scope = %(scope)s AND c.key = %(key)s AND (c."limit" IS NULL OR c.in_flight + %(weight)s <= c."limit")
      AND NOT EXISTS (SELECT FROM admission_permit WHERE holder = %(holder)s AND scope = %(scope)s)
    RETURNING c.id
),
inserted AS (
    INSERT INTO admission_permit (holder, scope, key, weight, tenant_id, driver_name, acquired_at, renewed_at,
                                  lapse_seconds)
    SELECT %(holder)s, %(scope)s, %(key)s, %(weight)s, %(tenant_id)s, %(driver_name)s, clock_timestamp(),
           clock_timestamp(), %(lapse_seconds)s FROM counted
    ON CONFLICT (holder, scope) DO NOTHING RETURNING id
)
SELECT true AS claimed, true AS tenant_known FROM inserted
"""


def parameters(tenant: Any, holder: str, weight: int = 1) -> dict[str, Any]:
    return {
        "holder": holder,
        "tenant_id": tenant.pk,
        "scope": "tenant",
        "key": str(tenant.pk),
        "weight": weight,
        "lapse_seconds": 60,
        "driver_name": "",
    }


def claim(tenant: Any, holder: str, weight: int = 1) -> ClaimOutcome:
    return claim_permit(holder, tenant_id=tenant.pk, weight=weight).outcome


def claim_at_once(connections: list[psycopg.Connection[Any]], statement: str, given: dict[str, Any]) -> None:
    """The same claim on every connection, released by one barrier."""
    barrier = threading.Barrier(len(connections))

    def call(connection: psycopg.Connection[Any]) -> None:
        barrier.wait()
        connection.execute(statement.encode(), given)

    threads = [threading.Thread(target=call, args=(c,)) for c in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(ledger.PATIENCE_SECONDS)


def rounds_with_a_phantom(tenant: Any, connect: Any, statement: str, rounds: int) -> int:
    connections = [connect(autocommit=True) for _ in range(4)]
    phantoms = 0
    for number in range(rounds):
        before = ledger.in_flight(tenant)
        claim_at_once(connections, statement, parameters(tenant, f"ext:{number}"))
        phantoms += ledger.in_flight(tenant) != before + 1
    return phantoms


@pytest.mark.rule("A6", "A5", "G8")
def test_one_id_claimed_by_four_connections_at_the_same_instant_counts_once(make_tenant: Any, connect: Any) -> None:
    tenant = make_tenant(1000)
    assert rounds_with_a_phantom(tenant, connect, sql.CLAIM_PERMIT, 40) == 0
    ledger.assert_conserved()


@pytest.mark.rule("A6", "A5")
def test_a_second_claim_waits_for_an_open_first_one_and_is_held(make_tenant: Any, connect: Any) -> None:
    tenant, first, observer = make_tenant(5), connect(), connect(autocommit=True)
    first.execute(sql.CLAIM_PERMIT.encode(), parameters(tenant, "ext:a"))
    second = ledger.Concurrent(claim, tenant, "ext:a")
    ledger.until_waiting(observer, second)
    first.commit()
    assert second.result() == ClaimOutcome.HELD
    assert ledger.in_flight(tenant) == 1
    ledger.assert_conserved()


@pytest.mark.rule("A6", "A5")
def test_without_the_guard_the_same_meeting_leaves_a_phantom(make_tenant: Any, connect: Any) -> None:
    """The red variant: with the counter first, what the test before proves is false."""
    tenant, first, other, observer = make_tenant(5), connect(), connect(autocommit=True), connect(autocommit=True)
    first.execute(UNGUARDED_CLAIM.encode(), parameters(tenant, "ext:a"))
    done = threading.Thread(target=other.execute, args=(UNGUARDED_CLAIM.encode(), parameters(tenant, "ext:a")))
    done.start()
    ledger.until(lambda: ledger.waits_for_lock(observer, other.info.backend_pid))
    first.commit()
    done.join(ledger.PATIENCE_SECONDS)
    assert (ledger.in_flight(tenant), ledger.permits(tenant)) == (2, 1)


@pytest.mark.rule("A6", "A5")
def test_a_second_claim_takes_over_when_the_first_one_is_undone(make_tenant: Any, connect: Any) -> None:
    tenant, first, observer = make_tenant(1), connect(), connect(autocommit=True)
    first.execute(sql.CLAIM_PERMIT.encode(), parameters(tenant, "ext:a"))
    second = ledger.Concurrent(claim, tenant, "ext:a")
    ledger.until_waiting(observer, second)
    first.rollback()
    assert second.result() == ClaimOutcome.GRANTED
    ledger.assert_conserved()


@pytest.mark.rule("A6", "A8")
def test_a_claim_that_meets_its_own_release_is_a_new_right(make_tenant: Any, connect: Any) -> None:
    tenant, releasing, observer = make_tenant(1), connect(), connect(autocommit=True)
    claim(tenant, "ext:a")
    releasing.execute(sql.RELEASE_PERMIT.encode(), parameters(tenant, "ext:a"))
    again = ledger.Concurrent(claim, tenant, "ext:a")
    ledger.until_waiting(observer, again)
    releasing.commit()
    assert again.result() == ClaimOutcome.GRANTED
    assert (ledger.in_flight(tenant), ledger.permits(tenant)) == (1, 1)
    ledger.assert_conserved()


@pytest.mark.rule("A6", "A8")
def test_a_release_that_meets_its_own_claim_waits_for_nothing_and_was_not_held(make_tenant: Any, connect: Any) -> None:
    tenant, claiming = make_tenant(1), connect()
    claiming.execute(sql.CLAIM_PERMIT.encode(), parameters(tenant, "ext:a"))
    assert release_permit("ext:a", tenant_id=tenant.pk) is False
    claiming.commit()
    assert release_permit("ext:a", tenant_id=tenant.pk) is True
    ledger.assert_conserved()


@pytest.mark.rule("A8")
def test_two_releases_at_once_decrement_once(make_tenant: Any, connect: Any) -> None:
    tenant, first, observer = make_tenant(5), connect(), connect(autocommit=True)
    claim(tenant, "ext:a", 2)
    claim(tenant, "ext:b", 3)
    assert first.execute(sql.RELEASE_PERMIT.encode(), parameters(tenant, "ext:a")).rowcount == 1
    second = ledger.Concurrent(release_permit, "ext:a", tenant_id=tenant.pk)
    ledger.until_waiting(observer, second)
    first.commit()
    assert second.result() is False
    assert ledger.in_flight(tenant) == 3
    ledger.assert_conserved()


@pytest.mark.rule("A7")
def test_a_claim_with_another_weight_that_meets_an_open_one_is_a_conflict(make_tenant: Any, connect: Any) -> None:
    tenant, first, observer = make_tenant(5), connect(), connect(autocommit=True)
    first.execute(sql.CLAIM_PERMIT.encode(), parameters(tenant, "ext:a"))
    second = ledger.Concurrent(claim, tenant, "ext:a", 2)
    ledger.until_waiting(observer, second)
    first.commit()
    with pytest.raises(Conflict):
        second.result()
    assert ledger.in_flight(tenant) == 1


@pytest.mark.rule("A4", "G6")
def test_the_last_slot_goes_to_one_of_two_ids_although_both_saw_it_free(make_tenant: Any, connect: Any) -> None:
    tenant, first, observer = make_tenant(1), connect(), connect(autocommit=True)
    first.execute(sql.CLAIM_PERMIT.encode(), parameters(tenant, "ext:a"))
    second = ledger.Concurrent(claim, tenant, "ext:b")
    ledger.until_waiting(observer, second)
    first.commit()
    assert second.result() == ClaimOutcome.REFUSED
    assert list(Permit.objects.values_list("holder", flat=True)) == ["ext:a"]
    ledger.assert_conserved()


@pytest.mark.rule("A4", "A15")
def test_a_claim_that_waits_for_a_lowered_limit_sees_the_lowered_one(make_tenant: Any, connect: Any) -> None:
    tenant, operator, observer = make_tenant(5), connect(), connect(autocommit=True)
    operator.execute(
        "UPDATE admission_counter SET \"limit\" = 0 WHERE key = %s AND scope = 'tenant'", (str(tenant.pk),)
    )
    late = ledger.Concurrent(claim, tenant, "ext:a")
    ledger.until_waiting(observer, late)
    operator.commit()
    assert late.result() == ClaimOutcome.REFUSED
    assert ledger.permits(tenant) == 0


@pytest.mark.rule("A5")
def test_a_client_killed_inside_its_claim_leaves_nothing(make_tenant: Any, connect: Any) -> None:
    tenant, victim, chaos = make_tenant(5), connect(), connect(autocommit=True)
    victim.execute(sql.CLAIM_PERMIT.encode(), parameters(tenant, "ext:a"))
    chaos.execute("SELECT pg_terminate_backend(%s)", (victim.info.backend_pid,))
    assert claim(tenant, "ext:a") == ClaimOutcome.GRANTED
    assert ledger.in_flight(tenant) == 1
    ledger.assert_conserved()


@pytest.mark.rule("A5")
def test_a_recount_of_a_first_quota_misses_no_claim_and_no_release_under_way(make_tenant: Any, connect: Any) -> None:
    tenant, releasing, observer = make_tenant(), connect(), connect(autocommit=True)
    claim(tenant, "ext:a", 2)
    releasing.execute("SELECT FROM admission_counter WHERE key = %s FOR NO KEY UPDATE", (str(tenant.pk),))
    quota = ledger.Concurrent(set_quota, tenant, 5, actor=SYSTEM)
    ledger.until_waiting(observer, quota)
    releasing.execute(sql.RELEASE_PERMIT.encode(), parameters(tenant, "ext:a"))
    releasing.commit()
    quota.result()
    assert ledger.in_flight(tenant) == 0
    ledger.assert_conserved()


@pytest.mark.rule("G6", "G9")
def test_no_statement_locks_by_session_or_decides_a_permit_by_a_row_lock() -> None:
    statements = "".join(ledger.all_statements().values())
    assert not re.search(
        r"pg_(try_)?advisory_lock|\bLISTEN\b|SERIALIZABLE|LOCK TABLE|\bTEMP\b|SET SESSION", statements
    )
    assert "FOR UPDATE" not in sql.CLAIM_PERMIT
