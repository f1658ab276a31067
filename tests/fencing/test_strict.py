"""Strict fencing with real processes: a holder that is killed, paused or cut off has nothing left when it is taken."""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from admission.models import Attempt, Tenant
from admission.services.sweeps import sweep_deadlines
from controlplane.core.audit import SYSTEM
from recovery.models import Replica
from recovery.replica.executor import LABEL_DRIVER
from recovery.services.reconcile import reconcile
from runners.services.enrolment import Machine, enrol, issue_enrolment_token
from tests import ledger
from tests.fencing.world import (
    WINDOWS,
    Fleet,
    Observer,
    Victim,
    Work,
    control_plane,
    first_taken,
    running,
    states,
    until,
    watchdogs,
)

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.rule("A16", "A28"),
    pytest.mark.xdist_group("fencing"),
]

FAULTS = ("killed", "paused", "cut off")
QUOTA = 2
soak = pytest.mark.soak


def reconcile_all() -> object:
    """What a surviving replica does each minute, here several times a second."""
    return reconcile(claimant=str(uuid.uuid4()), by="a test")


def nothing_left_before_it_is_taken(
    victim: Victim,
    fault: str,
    observer: Observer,
    runs: list[int],
    *,
    take: Callable[[], object],
    patience: float = 60,
) -> None:
    """The whole claim: seen by an observer, compared with the ledger's own times."""
    failed = time.time()
    victim.fail(fault)

    def taken() -> float | None:
        take()
        return first_taken(runs)

    at: float = until(taken, victim.text, patience)
    time.sleep(0.3)
    print(
        f"\n{fault}: last container gone {observer.last_seen - failed:.2f} s after the fault, first run taken after "
        f"{at - failed:.2f} s, peak {observer.peak}"
    )
    assert observer.count == 0, victim.text()
    assert observer.last_seen < at, "a container was there when its run was taken"
    assert observer.peak == QUOTA


@pytest.mark.parametrize(
    "failing",
    [
        ("docker", "killed"),
        ("docker", "paused"),
        ("docker", "cut off"),
        ("process", "paused"),
        pytest.param(("process", "killed"), marks=soak),
        pytest.param(("process", "cut off"), marks=soak),
    ],
    ids=" ".join,
)
def test_a_replica_that_fails_has_no_container_left_before_its_runs_are_taken(
    failing: tuple[str, str], tmp_path: Path, settings: Any, make_tenant: Callable[..., Tenant], local_image: str
) -> None:
    executor, fault = failing
    settings.CONTROLPLANE = control_plane("strict")
    tenant, work = make_tenant(QUOTA), Work()
    runs = work.submit(tenant, QUOTA, local_image, backend=executor)
    with Fleet(tmp_path, "strict", executor) as fleet:
        victim, row = fleet.replica("victim", through=fault == "cut off")
        with Observer(executor, work.mark, {LABEL_DRIVER: str(row.incarnation)}) as observer:
            until(lambda: running(runs) == QUOTA and observer.count == QUOTA, victim.text)
            nothing_left_before_it_is_taken(victim, fault, observer, runs, take=reconcile_all)
            assert states(runs) == ["queued"] * QUOTA
            ledger.assert_conserved()
            if fault == "paused":
                victim.process.send_signal(signal.SIGCONT)
                # It goes on as another incarnation; of the old one nothing comes back, and never too much of both.
                others = Replica.objects.filter(name="victim", declared_dead_at=None).exclude(pk=row.pk)
                until(others.exists, victim.text)
                assert observer.peak == QUOTA
                assert executor == "process" or observer.count == 0
        victim.end()
        until(lambda: not watchdogs(str(row.incarnation)), victim.text)


@pytest.mark.rule("Q6", "Q12")
@pytest.mark.parametrize("fault", ["paused", pytest.param("killed", marks=soak), pytest.param("cut off", marks=soak)])
def test_a_runner_that_fails_has_nothing_left_before_its_lease_has_lapsed(
    fault: str, tmp_path: Path, settings: Any, make_tenant: Callable[..., Tenant], live_server: Any
) -> None:
    settings.CONTROLPLANE = control_plane("strict")
    tenant, work = make_tenant(QUOTA), Work()
    runs = work.submit(tenant, QUOTA, backend="process")
    enrolment = issue_enrolment_token(actor=SYSTEM)[1]
    _, token = enrol(enrolment, Machine("a runner", slots=4, executors=("process",)))
    with Fleet(tmp_path, "off", "process") as fleet:
        # The agent's own environment says nothing of fencing: the server tells it.
        victim = fleet.agent(live_server.url, token)
        with Observer("process", work.mark, {}) as observer:
            until(lambda: running(runs) == QUOTA and observer.count == QUOTA, victim.text)
            nothing_left_before_it_is_taken(victim, fault, observer, runs, take=sweep_deadlines)
            ledger.assert_conserved()


@pytest.mark.rule("R12")
def test_a_driver_that_wakes_after_the_fence_but_before_the_take_returns_its_runs_as_lost_and_goes_on(
    tmp_path: Path, settings: Any, make_tenant: Callable[..., Tenant]
) -> None:
    settings.CONTROLPLANE = control_plane("strict")
    tenant, work = make_tenant(QUOTA), Work()
    runs = work.submit(tenant, QUOTA, backend="process", retry={"backoff_seconds": 0})
    with Fleet(tmp_path, "strict", "process") as fleet:
        victim, _ = fleet.replica("victim")
        with Observer("process", work.mark, {}) as observer:
            until(lambda: running(runs) == QUOTA and observer.count == QUOTA, victim.text)
            victim.fail("paused")
            until(lambda: observer.count == 0, victim.text)
            victim.process.send_signal(signal.SIGCONT)
            until(lambda: Attempt.objects.filter(run__in=runs, number=2).count() == QUOTA, victim.text)
            until(lambda: observer.count == QUOTA, victim.text)
            ended = Attempt.objects.filter(run__in=runs, number=1).values_list("ending", "detail")
            assert list(ended) == [("interrupted", "lost")] * QUOTA, "not failed: it did not end by itself"
            assert observer.peak == QUOTA


@pytest.mark.parametrize("fence", ["off", "strict"])
def test_a_paused_replica_exceeds_the_quota_by_what_it_executes_at_most_and_under_strict_fencing_not_at_all(
    fence: str, tmp_path: Path, settings: Any, make_tenant: Callable[..., Tenant]
) -> None:
    """Two real replicas: the one that lives goes on with the runs of the other. The bound of docs/concepts.md."""
    settings.CONTROLPLANE = control_plane(fence)
    tenant, work = make_tenant(QUOTA), Work()
    runs = work.submit(tenant, QUOTA, backend="process", retry={"backoff_seconds": 0})
    with Fleet(tmp_path, fence, "process") as fleet:
        paused, row = fleet.replica("paused")
        with Observer("process", work.mark, {}) as observer:
            until(lambda: running(runs) == QUOTA and observer.count == QUOTA, paused.text)
            other, other_row = fleet.replica("other")
            paused.fail("paused")
            again = {"run__in": runs, "number": 2, "driver_id": other_row.pk, "started_at__isnull": False}
            until(lambda: Attempt.objects.filter(**again).count() == QUOTA, other.text)
            until(lambda: observer.count >= QUOTA, other.text)
            time.sleep(1)
            excess = observer.peak - QUOTA
            print(f"\nfence {fence}: quota {QUOTA}, peak {observer.peak}: {excess} over")
            assert excess == (QUOTA if fence == "off" else 0), "all that the paused one executed, or nothing"
            paused.process.send_signal(signal.SIGCONT)
            until(lambda: observer.count == QUOTA, paused.text)
            assert row.pk != other_row.pk


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", FAULTS)
def test_with_the_windows_of_the_contract_nothing_is_left_before_ninety_seconds_of_silence(
    fault: str, tmp_path: Path, settings: Any, make_tenant: Callable[..., Tenant], local_image: str
) -> None:
    scale = 90 / WINDOWS["replica_stale_seconds"]
    settings.CONTROLPLANE = control_plane("strict", scale)
    tenant, work = make_tenant(QUOTA), Work()
    runs = work.submit(tenant, QUOTA, local_image, backend="docker")
    with Fleet(tmp_path, "strict", "docker", scale) as fleet:
        victim, row = fleet.replica("victim", through=fault == "cut off")
        with Observer("docker", work.mark, {LABEL_DRIVER: str(row.incarnation)}) as observer:
            until(lambda: running(runs) == QUOTA and observer.count == QUOTA, victim.text)
            nothing_left_before_it_is_taken(victim, fault, observer, runs, take=reconcile_all, patience=300)
            ledger.assert_conserved()
