"""Limits below the tenant: harnesses and concurrency keys; several limits, all or none."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from admission.models import Counter, Permit
from admission.services.limits import change_limit, set_harness_capacity, set_key_limit
from controlplane.core.audit import SYSTEM
from controlplane.core.errors import InvalidInput
from controlplane.core.models import AuditEntry
from tests import ledger

pytestmark = pytest.mark.django_db(transaction=True)


def in_flight(scope: str) -> int:
    return Counter.objects.get(scope=scope).in_flight


@pytest.mark.rule("A20")
def test_a_full_harness_blocks_only_its_own_runs_in_one_batch(make_tenant: Any, make_driver: Any, submit: Any) -> None:
    set_harness_capacity("tank", 2, actor=SYSTEM)
    first, second, driver = make_tenant(50), make_tenant(), make_driver()
    mixed = [submit(t, 1, **({"harness": "tank"} if n % 2 else {})) for n in range(10) for t in (first, second)]
    assert len(mixed) == 20
    admitted = {a.run: a for a in ledger.admit_all(driver)}
    assert len(admitted) == 12, "ten without the harness, two with it"
    assert sum(a.spec.harness == "tank" for a in admitted.values()) == in_flight("harness") == 2
    ledger.assert_conserved()
    set_harness_capacity("tank", 5, actor=SYSTEM)
    assert len(ledger.admit_all(driver)) == 3
    ledger.assert_conserved()


@pytest.mark.rule("A20", "A15")
def test_a_capacity_lowered_below_what_is_in_flight_kills_nothing_and_admits_nothing(
    make_tenant: Any, make_driver: Any, submit: Any
) -> None:
    tenant, driver = make_tenant(), make_driver()
    submit(tenant, 6, harness="tank")
    held = ledger.start(driver, ledger.admit_all(driver, 4))
    change = set_harness_capacity("tank", 2, actor=SYSTEM, reason="half of it is gone")
    assert (change.before, change.limit, change.in_flight) == (None, 2, 4)
    assert change.sentence() == "4 in use, limit 2: 2 over, nothing is killed."
    ledger.succeed(driver, held[:2])
    ledger.holds_for(3, lambda: ledger.admit_all(driver) == [])
    ledger.succeed(driver, held[2:3])
    assert len(ledger.admit_all(driver)) == 1
    set_harness_capacity("tank", None, actor=SYSTEM)
    assert len(ledger.admit_all(driver)) == 1
    ledger.assert_conserved()


@pytest.mark.rule("A4", "A20")
@pytest.mark.parametrize("full", ["harness", "key", "tenant"])
def test_a_run_that_needs_three_limits_takes_none_if_one_is_full(
    make_tenant: Any, make_driver: Any, submit: Any, full: str
) -> None:
    limits = {"harness": 5, "key": 5, "tenant": 5} | {full: 0}
    tenant, driver = make_tenant(limits["tenant"]), make_driver()
    set_harness_capacity("tank", limits["harness"], actor=SYSTEM)
    set_key_limit(tenant, "deploy", limits["key"], actor=SYSTEM)
    submit(tenant, 2, harness="tank", concurrency_key="deploy")
    ledger.holds_for(3, lambda: ledger.admit_all(driver) == [])
    assert [in_flight(scope) for scope in limits] == [0, 0, 0]
    assert not Permit.objects.exists()
    ledger.assert_conserved()


@pytest.mark.rule("A4", "A5", "A20")
def test_of_three_limits_the_tightest_decides_and_the_end_gives_all_back(
    make_tenant: Any, make_driver: Any, submit: Any
) -> None:
    tenant, driver = make_tenant(4), make_driver()
    set_harness_capacity("tank", 3, actor=SYSTEM)
    set_key_limit(tenant, "deploy", 2, actor=SYSTEM)
    submit(tenant, 5, harness="tank", concurrency_key="deploy")
    held = ledger.start(driver, ledger.admit_all(driver))
    assert [in_flight(scope) for scope in ("harness", "key", "tenant")] == [2, 2, 2]
    assert Permit.objects.count() == 6
    ledger.succeed(driver, held)
    assert [in_flight(scope) for scope in ("harness", "key", "tenant")] == [0, 0, 0]
    ledger.assert_conserved()


@pytest.mark.rule("P18")
def test_a_key_stays_in_force_below_a_tenant_without_a_quota(make_tenant: Any, make_driver: Any, submit: Any) -> None:
    tenant, other, driver = make_tenant(), make_tenant(), make_driver()
    for t in (tenant, other):
        submit(t, 3, concurrency_key="repo:one")
    assert len(ledger.admit_all(driver)) == 2, "one of each tenant: a key is its tenant's own"
    ledger.holds_for(3, lambda: ledger.admit_all(driver) == [])
    ledger.assert_conserved()


@pytest.mark.rule("A15", "P18")
def test_a_limit_may_be_set_before_the_first_run_and_every_change_is_audited(make_tenant: Any) -> None:
    tenant = make_tenant()
    set_key_limit(tenant, "deploy", 3, actor=SYSTEM, reason="three runways")
    set_key_limit(tenant, "deploy", "2", actor=SYSTEM)
    entries = AuditEntry.objects.filter(verb="set_limit", subject=f"{tenant.slug}:deploy").order_by("id")
    assert [(e.before, e.after["limit"]) for e in entries] == [({"limit": 3}, 3), ({"limit": 3}, 2)]
    assert entries[0].reason == "three runways"


@pytest.mark.parametrize("limit", [-1, 2**31, 1.5, "x", True, "", None])
def test_a_wrong_limit_and_a_wrong_name_are_refused(make_tenant: Any, limit: Any) -> None:
    tenant = make_tenant()
    with pytest.raises(InvalidInput):
        set_key_limit(tenant, "deploy", limit, actor=SYSTEM)
    with pytest.raises(InvalidInput):
        set_harness_capacity(" tank", 1, actor=SYSTEM)
    with pytest.raises(InvalidInput):
        change_limit(ledger.counter(tenant), 1, actor=SYSTEM)
    assert Counter.objects.exclude(scope="tenant").count() == 0


@pytest.mark.rule("O2")
def test_by_manage_py(make_tenant: Any) -> None:
    tenant = make_tenant(slug="acme")

    def say(*arguments: str) -> str:
        out = StringIO()
        call_command("limits", *arguments, stdout=out)
        return out.getvalue()

    assert "limit 3" in say("--harness", "tank", "--set", "3", "--reason", "new tank")
    assert "limit 2" in say("--tenant", "acme", "--key", "deploy", "--set", "2", "--reason", "x")
    listed = json.loads(say("--json"))["limits"]
    assert [(one["scope"], one["tenant"], one["key"], one["limit"]) for one in listed] == [
        ("harness", "", "tank", 3),
        ("key", "acme", "deploy", 2),
    ]
    assert "tank" not in say("--tenant", "acme")
    assert "no limit" in say("--harness", "tank", "--set", "none", "--reason", "x")
    for wrong in (("--key", "deploy", "--set", "1"), ("--harness", "tank", "--set", "-1"), ("--tenant", "nobody")):
        with pytest.raises(CommandError):
            say(*wrong, "--reason", "x")
    assert ledger.counter(tenant).limit is None
