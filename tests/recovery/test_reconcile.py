"""Dead replicas: who may take their runs, when, and exactly once."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from admission.drivers import DriverGone
from admission.models import Attempt, Run, Tenant
from admission.services.runs import (
    OPERATOR,
    HoldVerdict,
    Settlement,
    renew_runs,
    settle_runs,
    start_runs,
    take_away,
)
from controlplane.core.identity import boot_id, current_process, machine_id
from recovery.models import RecoveryAction, RecoveryClaim, Replica
from recovery.services.deaths import declare_and_claim
from recovery.services.reconcile import reconcile
from recovery.services.replicas import (
    Machine,
    ReplicaIdInUse,
    beat,
    drain_replica,
    leave,
    register_replica,
    replica_driver,
)
from recovery.services.reporting import Report
from runners.agent.physical.owner import is_gone
from tests import ledger

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("witness")]

MACHINE = Machine("process", slots=4)


def silence(replica: Replica, seconds: float = 1000) -> None:
    Replica.objects.filter(pk=replica.pk).update(beat_at=timezone.now() - timedelta(seconds=seconds))


def one_pass(claimant: str = "", **options: Any) -> Report:
    return reconcile(claimant=claimant or str(uuid.uuid4()), by="a test", **options)


def test_a_silent_replicas_running_work_is_requeued_once_with_its_permit_and_the_row_goes_last(
    make_tenant: Callable[..., Tenant],
) -> None:
    tenant, dead = make_tenant(3), ledger.make_replica()
    driver = replica_driver(dead)
    ledger.submit(tenant, 3)
    held = ledger.start(driver, ledger.admit_all(driver))
    silence(dead)

    report = one_pass()

    assert (report.requeued, report.finished) == (3, [dead.name])
    assert set(Run.objects.values_list("state", flat=True)) == {"queued"}
    assert ledger.in_flight(tenant) == ledger.permits(tenant) == 0
    assert not Replica.objects.filter(pk=dead.pk).exists()
    assert RecoveryAction.objects.filter(outcome="requeued").count() == 3
    assert set(renew_runs(driver, held).values()) == {HoldVerdict.SUPERSEDED}
    assert one_pass().as_dict() == Report().as_dict()


@pytest.mark.rule("R3", "R1")
def test_a_living_replicas_work_is_never_touched_nor_its_row(make_tenant: Callable[..., Tenant]) -> None:
    tenant, alive, dead = make_tenant(), ledger.make_replica(), ledger.make_replica()
    ledger.submit(tenant, 2)
    kept = ledger.admit_all(replica_driver(alive), 1)[0]
    taken = ledger.admit_all(replica_driver(dead), 1)[0]
    silence(dead)

    one_pass()

    mine = ledger.run(kept.run)
    assert (mine.state, mine.driver_kind, mine.driver_id) == ("admitted", "replica", alive.pk)
    assert mine.driver_incarnation == alive.incarnation
    assert ledger.state(taken.run) == "queued"
    assert Replica.objects.filter(pk=alive.pk, declared_dead_at__isnull=True).exists()


@pytest.mark.rule("R3")
def test_work_without_any_replica_row_is_reclaimed_and_a_runners_is_not(make_tenant: Callable[..., Tenant]) -> None:
    tenant, gone = make_tenant(), ledger.make_replica()
    runner = ledger.make_driver("runner")
    ledger.submit(tenant, 2)
    orphan = ledger.admit_all(replica_driver(gone), 1)[0]
    remote = ledger.admit_all(runner, 1)[0]
    Replica.objects.filter(pk=gone.pk).delete()

    assert one_pass().requeued == 1
    assert ledger.state(orphan.run) == "queued"
    assert ledger.state(remote.run) == "admitted"


@pytest.mark.rule("R8")
def test_the_displaced_drivers_late_result_changes_nothing(make_tenant: Callable[..., Tenant]) -> None:
    tenant, dead = make_tenant(1), ledger.make_replica()
    driver = replica_driver(dead)
    ledger.submit(tenant)
    held = ledger.start(driver, ledger.admit_all(driver))
    silence(dead)
    one_pass()
    successor = ledger.make_driver()
    Run.objects.update(delayed=False)
    again = ledger.admit_all(successor)

    verdicts, ended = settle_runs(driver, [Settlement(*held[0], "succeeded", exit_code=0)])

    assert (list(verdicts.values()), ended) == ([HoldVerdict.SUPERSEDED], [])
    assert start_runs(driver, held)[held[0]] is HoldVerdict.SUPERSEDED
    assert ledger.state(again[0].run) == "admitted"
    assert again[0].epoch > held[0][1]
    assert ledger.in_flight(tenant) == 1


@pytest.mark.rule("R3")
def test_an_exhausted_run_is_interrupted_and_one_that_asked_so_at_once(make_tenant: Callable[..., Tenant]) -> None:
    tenant, dead = make_tenant(), ledger.make_replica()
    driver = replica_driver(dead)
    ids = ledger.submit(tenant, 1, retry={"max_attempts": 1}) + ledger.submit(
        tenant, 1, retry={"on_interrupt": "fail"}
    )
    ledger.start(driver, ledger.admit_all(driver))
    silence(dead)

    assert one_pass().interrupted == 2
    assert {ledger.state(run) for run in ids} == {"interrupted"}
    assert set(Attempt.objects.values_list("ending", flat=True)) == {"interrupted"}


@pytest.mark.rule("R15")
def test_a_recovered_ending_leaves_the_same_rows_as_any_other_of_its_kind(make_tenant: Callable[..., Tenant]) -> None:
    tenant, dead = make_tenant(2), ledger.make_replica()
    driver = replica_driver(dead)
    by_recovery, by_hand = ledger.submit(tenant, 2, retry={"max_attempts": 1})
    held = dict(ledger.start(driver, ledger.admit_all(driver)))
    take_away([(by_hand, held[by_hand])], OPERATOR)
    silence(dead)
    one_pass()

    own = {"id", "run_id", "reason", "detail", *(f for f in _times(Run) | _times(Attempt))}
    for found in (Run.objects.filter(pk__in=held).order_by("pk"), Attempt.objects.order_by("run")):
        one, other = found.values()
        assert {k: v for k, v in one.items() if k not in own} == {k: v for k, v in other.items() if k not in own}
        assert [one[k] is None for k in sorted(own & set(one))] == [other[k] is None for k in sorted(own & set(other))]
    assert ledger.state(by_recovery) == "interrupted"
    assert ledger.in_flight(tenant) == ledger.permits(tenant) == 0


def _times(model: Any) -> set[str]:
    return {f.name for f in model._meta.get_fields() if f.get_internal_type() == "DateTimeField"}


def test_two_survivors_reconcile_one_dead_replica_once(make_tenant: Callable[..., Tenant]) -> None:
    dead = ledger.make_replica()
    silence(dead)
    assert declare_and_claim(dead.pk, claimant="first", proof="stale")
    assert not declare_and_claim(dead.pk, claimant="second", proof="stale")

    report = one_pass("second")

    assert report.left_alone == [{"replica": dead.name, "why": "claimed by first"}]
    assert Replica.objects.filter(pk=dead.pk).exists()
    assert one_pass("first").finished == [dead.name]


def test_a_claim_whose_owner_died_is_expired_and_the_next_pass_resumes(make_tenant: Callable[..., Tenant]) -> None:
    dead = ledger.make_replica()
    silence(dead)
    assert declare_and_claim(dead.pk, claimant="died in the middle", proof="stale")
    RecoveryClaim.objects.update(claimed_at=timezone.now() - timedelta(hours=1))

    assert one_pass().expired_claims == 1
    assert one_pass().finished == [dead.name]


@pytest.mark.rule("R2")
def test_a_replica_that_beats_again_before_the_declaration_lives(make_tenant: Callable[..., Tenant]) -> None:
    replica = ledger.make_replica()
    silence(replica)
    assert beat(replica.pk) is False
    assert not declare_and_claim(replica.pk, claimant="late", proof="stale")
    assert not RecoveryClaim.objects.exists()


@pytest.mark.rule("R2")
def test_a_declaration_of_death_is_final_for_the_incarnation(make_tenant: Callable[..., Tenant]) -> None:
    replica = ledger.make_replica()
    silence(replica)
    assert declare_and_claim(replica.pk, claimant="c", proof="stale")
    assert beat(replica.pk) is None
    assert replica_driver(replica).lock() is False


@pytest.mark.rule("R4")
def test_unreadable_heartbeats_mean_that_everyone_may_be_alive(make_tenant: Callable[..., Tenant]) -> None:
    tenant, dead = make_tenant(), ledger.make_replica()
    ledger.submit(tenant)
    ledger.admit_all(replica_driver(dead))
    silence(dead)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE recovery_replica RENAME TO recovery_replica_away")
    try:
        report = one_pass()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE recovery_replica_away RENAME TO recovery_replica")
    assert "nothing was reclaimed" in report.error
    assert set(Run.objects.values_list("state", flat=True)) == {"admitted"}


@pytest.mark.rule("R5")
def test_a_lone_healthy_replica_costs_one_read_a_pass_and_no_write(
    witness: Replica, django_assert_num_queries: Any
) -> None:
    with django_assert_num_queries(1) as captured:
        assert one_pass(self_id=witness.pk).as_dict() == Report().as_dict()
    statement = captured.captured_queries[0]["sql"].lstrip()
    assert statement.startswith("WITH clock AS")
    assert not any(f" {verb} " in statement for verb in ("INSERT", "UPDATE", "DELETE"))


@pytest.mark.rule("R3")
def test_a_restart_under_the_same_pinned_id_takes_over_a_process_proven_gone() -> None:
    dead = ledger.make_replica(
        name="pinned", machine=machine_id(), boot_id=boot_id(), pid=2**22 - 1, pid_start=1, executor="process"
    )
    new = register_replica("pinned", current_process(), MACHINE)
    assert new.pk != dead.pk
    assert Replica.objects.get(pk=dead.pk).declared_dead_at is not None
    assert reconcile(claimant=str(new.incarnation), by="pinned", self_id=new.pk).finished == ["pinned"]


@pytest.mark.rule("L9", "R10", "G7")
def test_a_living_process_of_a_container_is_not_proven_gone_by_one_outside_of_it() -> None:
    """Its pid is another process here, or none; machine and boot are the same."""
    program = "from runners.agent.physical.owner import *; o = owner_of(); print(o, is_gone(o), flush=True); input()"
    rights = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    inside = subprocess.Popen(
        ["unshare", *rights, "--pid", "--fork", "--mount-proc", sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert inside.stdout is not None
    owner, gone_inside = inside.stdout.readline().split()
    try:
        assert owner.split("/")[2] == "1"
        assert (gone_inside, is_gone(owner)) == ("False", False)
    finally:
        inside.communicate("\n")
    machine, _, rest = owner.split("/", 2)
    assert is_gone(f"{machine}/{boot_id()}/{rest}"), "the same pid of this namespace has another start"
    assert not is_gone(f"{machine}/an-earlier-boot:4026532500/{rest}")


@pytest.mark.rule("R3")
def test_a_living_process_under_the_same_pinned_id_is_not_displaced(settings: Any) -> None:
    settings.CONTROLPLANE = {"heartbeat_interval_seconds": 0.05}
    first = register_replica("pinned", current_process(), MACHINE)
    beating = ledger.Background(lambda: beat(first.pk), every=0.02)
    with beating, pytest.raises(ReplicaIdInUse, match="CONTROLPLANE_REPLICA_ID"):
        register_replica("pinned", current_process(), MACHINE)
    assert beat(first.pk) is False


def test_a_clean_goodbye_removes_the_row_and_refuses_while_something_is_held(
    make_tenant: Callable[..., Tenant],
) -> None:
    tenant, replica = make_tenant(), ledger.make_replica()
    driver = replica_driver(replica)
    assert leave(ledger.make_replica().pk)
    ledger.submit(tenant)
    held = ledger.start(driver, ledger.admit_all(driver))
    assert not leave(replica.pk)
    ledger.succeed(driver, held)
    assert one_pass().finished == [replica.name]


def test_a_draining_replica_gets_nothing_and_keeps_what_it_has(make_tenant: Callable[..., Tenant]) -> None:
    tenant, replica = make_tenant(), ledger.make_replica()
    driver = replica_driver(replica)
    ledger.submit(tenant, 2)
    held = ledger.holds(ledger.admit_all(driver, 1))
    assert drain_replica(replica, actor=ledger.SYSTEM, reason="maintenance")
    for _ in range(3):
        with pytest.raises(DriverGone):
            ledger.admit_all(driver, 1)
    assert renew_runs(driver, held)[held[0]] is HoldVerdict.OK
    assert beat(replica.pk) is True
