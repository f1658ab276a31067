"""What cannot be decided is owed: kept, asked about ever more rarely, escalated, paid when its epoch is over."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.db import connections
from django.utils import timezone

from admission.models import Tenant
from admission.services.runs import OPERATOR, Settlement, settle_runs, take_away
from controlplane.core.audit import SYSTEM
from controlplane.core.errors import Conflict, NotFound
from controlplane.core.models import AuditEntry
from recovery.models import RecoveryAction, RecoveryDebt, Replica
from recovery.selectors import read_standing
from recovery.services import debts, stuck
from recovery.services.orphans import Dead, Finding, LeftoversRemain, Orphan
from recovery.services.reconcile import reconcile
from recovery.services.replicas import replica_driver
from recovery.services.reporting import Report
from runners.agent.assignment import RunKey
from tests import ledger

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("witness")]

HOUR = timedelta(hours=1)


def refuses(dead: Dead) -> None:
    raise LeftoversRemain(f"the daemon of {dead.name} is away")


def one_pass(**options: Any) -> Report:
    return reconcile(claimant=str(uuid.uuid4()), by="a test", **options)


def make_due() -> None:
    RecoveryDebt.objects.filter(closed_at=None).update(next_at=timezone.now() - HOUR)


@pytest.fixture
def dead_with(make_tenant: Callable[..., Tenant]) -> Callable[..., tuple[Tenant, Replica, list[tuple[int, int]]]]:
    """A silent replica with so many running runs of a tenant with a quota."""

    def make(count: int = 1, **spec: Any) -> tuple[Tenant, Replica, list[tuple[int, int]]]:
        tenant, dead = make_tenant(count), ledger.make_replica()
        driver = replica_driver(dead)
        ledger.submit(tenant, count, **spec)
        held = ledger.start(driver, ledger.admit_all(driver))
        Replica.objects.filter(pk=dead.pk).update(beat_at=timezone.now() - HOUR)
        return tenant, dead, held

    return make


Dying = Callable[..., tuple[Tenant, Replica, list[tuple[int, int]]]]


@pytest.mark.rule("R7", "R9", "R16")
def test_leftovers_that_cannot_be_removed_make_debts_and_the_heartbeat_row_goes_with_all_in_debts(
    dead_with: Dying,
) -> None:
    tenant, dead, held = dead_with(2)

    report = one_pass(sweep=refuses)

    assert (report.deferred, report.requeued, report.finished) == (2, 0, [dead.name])
    owed = set(RecoveryDebt.objects.filter(closed_at=None).values_list("run_id", "epoch", "attempts"))
    assert owed == {(run, epoch, 1) for run, epoch in held}
    assert not Replica.objects.filter(pk=dead.pk).exists()
    assert {ledger.state(run) for run, _ in held} == {"running"}
    assert ledger.in_flight(tenant) == 2
    assert RecoveryAction.objects.filter(outcome="deferred", reason__contains="is away").count() == 2
    # Neither due nor ownerless: nothing happens before its time, however often it is looked.
    for _ in range(3):
        assert one_pass().as_dict() == Report().as_dict()
    make_due()
    assert one_pass().requeued == 2
    assert set(RecoveryDebt.objects.values_list("closed_as", flat=True)) == {"requeued"}
    assert ledger.in_flight(tenant) == 0
    ledger.assert_conserved()


@pytest.mark.rule("R9")
def test_a_stuck_debt_is_asked_about_at_doubling_intervals_escalated_at_the_fifth_and_never_dropped(
    dead_with: Dying,
) -> None:
    dead_with(1)
    one_pass(sweep=refuses)
    waits, reports = [], []
    for _ in range(9):
        make_due()
        reports.append(one_pass(sweep=refuses))
        debt = RecoveryDebt.objects.get()
        waits.append((debt.next_at - debt.tried_at).total_seconds())

    assert debt.closed_at is None
    assert debt.attempts == 10
    assert [r.escalated for r in reports] == [0, 0, 0, 1, 0, 0, 0, 0, 0], "told once, at the fifth attempt"
    assert waits[:5] == [120.0, 240.0, 480.0, 960.0, 1920.0]
    assert all(later >= sooner for sooner, later in pairwise(waits))
    assert waits[-1] == 3600.0
    assert read_standing().escalated == 1
    assert stuck.notify_stuck().counts == {"stuck": 1, "new": 1}
    assert stuck.notify_stuck().counts == {"stuck": 1, "new": 0}


@pytest.mark.rule("R9", "R8")
def test_a_debt_closes_when_its_epoch_is_over_and_nothing_is_done_to_the_successor(dead_with: Dying) -> None:
    _, _, held = dead_with(1)
    one_pass(sweep=refuses)
    take_away(held, OPERATOR)
    successor = ledger.make_driver()
    ledger.Run.objects.update(delayed=False)
    again = ledger.start(successor, ledger.admit_all(successor))

    report = one_pass(sweep=refuses)

    assert report.already_settled == 1
    assert RecoveryDebt.objects.get().closed_as == "already_settled"
    assert ledger.run(again[0][0]).epoch == again[0][1]
    assert ledger.state(again[0][0]) == "running"
    make_due()
    assert one_pass().requeued == 0


@pytest.mark.rule("R9")
def test_a_result_that_stands_when_the_debt_is_looked_at_is_kept(dead_with: Dying) -> None:
    _, dead, held = dead_with(1)
    one_pass(sweep=refuses)
    settle_runs(replica_driver(dead), [Settlement(*held[0], "succeeded", exit_code=0)])
    make_due()
    report = one_pass()
    assert (report.already_settled, report.requeued, report.interrupted) == (1, 0, 0)
    assert ledger.state(held[0][0]) == "succeeded"


@pytest.mark.rule("R9")
def test_two_passes_at_once_look_at_a_due_debt_once(dead_with: Dying) -> None:
    dead_with(1)
    one_pass(sweep=refuses)
    make_due()
    looked, together = [], threading.Barrier(2)

    def look(dead: Dead) -> None:
        looked.append(dead.name)
        raise LeftoversRemain("still away")

    def go() -> None:
        together.wait()
        one_pass(sweep=look)
        connections.close_all()

    threads = [threading.Thread(target=go) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(looked) == 1
    assert RecoveryDebt.objects.get().attempts == 2


def _adopts(taken: Iterable[int], undecided: Iterable[int]) -> Any:
    heir = ledger.make_replica(machine="heir")

    def adopt(dead: Dead, orphans: Sequence[Orphan]) -> Mapping[RunKey, Finding]:
        found = {}
        for orphan in orphans:
            if orphan.run in taken:
                ledger.Run.objects.filter(pk=orphan.run).update(epoch=orphan.epoch + 1, driver_id=heir.pk)
                found[orphan.key] = Finding("adopted", "it runs on here")
            elif orphan.run in undecided:
                found[orphan.key] = Finding("deferred", "the daemon did not answer")
        return found

    return adopt


@pytest.mark.rule("R9", "R10", "R16")
def test_each_orphan_has_its_outcome_adopted_owed_or_taken_and_a_row_that_says_why(dead_with: Dying) -> None:
    _, _, held = dead_with(3)
    adopted, undecided, gone = (run for run, _ in held)

    report = one_pass(adopt=_adopts([adopted], [undecided]))

    assert (report.adopted, report.deferred, report.requeued) == (1, 1, 1)
    outcomes = dict(RecoveryAction.objects.values_list("run_id", "outcome"))
    assert outcomes == {adopted: "adopted", undecided: "deferred", gone: "requeued"}
    assert ledger.state(adopted) == "running"
    make_due()
    assert one_pass(adopt=_adopts([undecided], [])).adopted == 1
    assert RecoveryDebt.objects.get().closed_as == "adopted"


@pytest.mark.rule("R9", "O2")
def test_an_operator_has_a_debt_looked_at_now_and_the_log_says_who(dead_with: Dying) -> None:
    dead_with(1)
    one_pass(sweep=refuses)
    debt = RecoveryDebt.objects.get()
    debts.retry_debt(debt.pk, actor=SYSTEM, reason="the daemon is back")
    assert AuditEntry.objects.get(verb="retry", subject=str(debt.pk)).reason == "the daemon is back"
    assert one_pass().requeued == 1
    with pytest.raises(Conflict):
        debts.retry_debt(debt.pk, actor=SYSTEM, reason="again")
    with pytest.raises(NotFound):
        debts.retry_debt(debt.pk + 1, actor=SYSTEM, reason="another")


@pytest.mark.rule("A16", "R3")
def test_under_strict_fencing_ownerless_work_waits_for_a_window_first(dead_with: Dying, settings: Any) -> None:
    settings.CONTROLPLANE = {**settings.CONTROLPLANE, "fence": "strict"}
    _, dead, held = dead_with(1)
    Replica.objects.filter(pk=dead.pk).delete()

    assert one_pass().deferred == 1
    make_due()
    assert one_pass().requeued == 0, "due, but the window is not over"
    assert ledger.state(held[0][0]) == "running"
    make_due()
    RecoveryDebt.objects.update(silent_at=timezone.now() - HOUR)
    assert one_pass().requeued == 1
