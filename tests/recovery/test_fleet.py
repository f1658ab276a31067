"""Recovery with real replicas: killed, paused, booting together, dying in the middle of it, cut off by an outage."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections
from django.utils import timezone

from admission.models import Attempt, Run
from recovery.models import RecoveryAction, RecoveryClaim, Replica
from runners.agent.executors.docker_adapter import DockerAdapter
from runners.agent.executors.images import ensure_python_image
from tests import ledger
from tests.own_server import OwnServer, django_on, own_server
from tests.recovery import world
from tests.recovery.world import FULL, PATIENT_SECONDS, SLACK_SECONDS, Fleet, until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.xdist_group("recovery"),
    pytest.mark.timeout(900),  # each wait is bounded by itself, with the patience that a busy machine needs
]
soak = pytest.mark.soak


@pytest.fixture
def make_fleet(database_url: str) -> Iterator[Callable[..., Fleet]]:
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(Fleet(**options))


def patience(scale: float) -> float:
    """Longer than every bound of recovery together."""
    return PATIENT_SECONDS + 4 * FULL["replica_stale_seconds"] * scale


def bound(scale: float) -> float:
    """From a death to its last orphan: stale, about 60 s, a tick."""
    stale, tick = FULL["replica_stale_seconds"], FULL["recovery_interval_seconds"]
    return (stale + 2 * tick) * scale


def killed_again_and_again(
    fleet: Fleet, *, runs: int, seconds: tuple[float, float], every: float, kills: int, slack: float
) -> dict[str, Any]:
    """Three replicas, one killed every so often and a new one in its place, under load; what was seen."""
    tenants = [ledger.make_tenant(6), ledger.make_tenant(4), ledger.make_tenant()]
    each = runs // len(tenants)
    shortest, longest = seconds
    lengths = [shortest + (longest - shortest) * n / (each - 1) for n in range(each)]
    image = ensure_python_image(adapter=DockerAdapter()) if fleet.executor == "docker" else ""
    submitted = [run for tenant in tenants for run in fleet.submit(tenant, lengths, image)]
    living = [fleet.replica(wait=False) for _ in range(3)]
    for _ in range(kills):
        time.sleep(every)
        # Three that live, before one is killed: a busy machine boots longer than `every`, and nobody would be left.
        for member in living:
            fleet.until_living(member)
        victim = until(lambda: world.busiest(living), living[0].text)
        living.remove(victim)
        victim.kill()
        living.append(fleet.replica(wait=False))
    until(lambda: world.all_ended(submitted), living[-1].text, 300 + patience(fleet.scale))
    killed = {member.name for member in fleet.members if member.killed_at}
    until(lambda: not Replica.objects.filter(name__in=killed).exists(), living[-1].text, patience(fleet.scale))

    world.assert_each_ended_exactly_once(submitted)
    world.assert_nothing_started_after_its_success(fleet, submitted)
    touched = set(RecoveryAction.objects.filter(run_id__isnull=False).values_list("replica_name", flat=True))
    assert touched <= killed, "a living replica's run was touched"
    peaks = [world.most_at_once(tenant) for tenant in tenants]
    assert peaks[0] <= 6
    assert peaks[1] <= 4
    ledger.assert_conserved()
    until(lambda: fleet.executing() == 0, living[-1].text)
    after = dict(world.settled_after(fleet))
    # A hold (rule R13) may come in between where beats were held up; each is of one window, and in the figures.
    held = set(RecoveryAction.objects.filter(outcome="deferred", run_id=None).values_list("replica_name", flat=True))
    window = FULL["replica_stale_seconds"] * fleet.scale
    most = bound(fleet.scale) + slack
    assert all(s <= most + (window if name in held else 0) for name, s in after.items()), (after, held)
    return {
        "runs": len(submitted),
        "kills": len(killed),
        "recovered": RecoveryAction.objects.filter(outcome="requeued").count(),
        "attempts": Attempt.objects.filter(run__in=submitted).count(),
        "peaks": peaks,
        "settled_after": [round(s, 1) for s in sorted(after.values())],
        "bound": round(most, 1),
        "held": len(held),
    }


@pytest.mark.rule("R5", "R6", "R7", "R8", "R9", "A4", "A30", "G8")
def test_replicas_are_killed_one_after_the_other_and_every_run_ends_exactly_once(
    make_fleet: Callable[..., Fleet],
) -> None:
    # Longer windows than the others: here no living replica may ever be late by a whole one.
    fleet = make_fleet(scale=0.08)
    seen = killed_again_and_again(fleet, runs=36, seconds=(2, 5), every=1, kills=2, slack=PATIENT_SECONDS)
    print(json.dumps(seen))


@soak
@pytest.mark.timeout(1800)
@pytest.mark.rule("R5", "R6", "R7", "R8", "R9", "A4", "A30", "G8")
@pytest.mark.parametrize("executor", ["process", "docker"])
def test_one_of_three_replicas_is_killed_every_fifteen_seconds_for_three_minutes(
    make_fleet: Callable[..., Fleet], executor: str
) -> None:
    fleet = make_fleet(executor=executor, scale=0.4)
    seen = killed_again_and_again(fleet, runs=200, seconds=(5, 20), every=15, kills=12, slack=SLACK_SECONDS)
    print(json.dumps(seen))


def paused_past_the_window(fleet: Fleet) -> None:
    """SIGSTOP, death, SIGCONT: it comes back as another incarnation, and nothing of the old one is written."""
    tenant = ledger.make_tenant(2)
    paused = fleet.replica(slots=2)
    old = fleet.until_living(paused)
    runs = fleet.submit(tenant, [600, 600], stop_grace_seconds=0)
    until(lambda: Run.objects.filter(pk__in=runs, state="running").count() == 2, paused.text)
    held = dict(Run.objects.filter(pk__in=runs).values_list("pk", "epoch"))
    paused.pause()
    survivor = fleet.replica(slots=2)
    until(
        lambda: not Run.objects.filter(driver_id=old.pk, state__in=("admitted", "running")).exists(),
        survivor.text,
        patience(fleet.scale),
    )
    paused.wake()

    new = until(lambda: Replica.objects.filter(name=paused.name).exclude(pk=old.pk).first(), paused.text)
    assert new.incarnation != old.incarnation
    assert new.pid == old.pid, "the same process goes on"
    # The two that moved on are stopped; what executes now is the second attempt of each, and no other.
    until(lambda: Run.objects.filter(pk__in=runs, state="running").count() == 2, survivor.text)
    until(lambda: fleet.executing() == 2, paused.text)
    until(lambda: "replica.remains_gone" in paused.text(), paused.text)
    for run in Run.objects.filter(pk__in=runs):
        assert run.epoch > held[run.pk]
        first, second = Attempt.objects.filter(run=run).order_by("number")
        assert (first.ending, first.reason) == ("interrupted", "driver_dead")
        assert second.released_at is None
    assert not Replica.objects.filter(pk=old.pk).exists()
    assert ledger.in_flight(tenant) == ledger.permits(tenant) == 2


@pytest.mark.rule("R12", "R8", "R2")
def test_a_replica_paused_past_the_window_comes_back_as_another_and_stops_what_moved_on(
    make_fleet: Callable[..., Fleet],
) -> None:
    paused_past_the_window(make_fleet())


@soak
@pytest.mark.timeout(1800)
@pytest.mark.rule("R12", "R8", "R2")
def test_paused_past_the_window_as_delivered(make_fleet: Callable[..., Fleet]) -> None:
    paused_past_the_window(make_fleet(scale=1.0))


@pytest.mark.rule("R2")
def test_a_replica_whose_slots_are_all_taken_for_longer_than_the_window_goes_on_beating(
    make_fleet: Callable[..., Fleet],
) -> None:
    fleet = make_fleet()
    full = fleet.replica(slots=1)
    runs = fleet.submit(ledger.make_tenant(), [600])
    until(lambda: Run.objects.filter(pk__in=runs, state="running").exists(), full.text)
    row = Replica.objects.get(name=full.name)
    later = row.beat_at + timedelta(seconds=1.5 * FULL["replica_stale_seconds"] * fleet.scale)
    until(lambda: Replica.objects.filter(pk=row.pk, beat_at__gt=later, declared_dead_at=None).exists(), full.text)
    assert "replica.wedged" not in full.text()
    assert Run.objects.filter(pk__in=runs, state="running", driver_id=row.pk).count() == 1


def boot_together(fleet: Fleet, *, replicas: int, orphans: int) -> None:
    """All boot over one dead replica in the same instant."""
    tenant = ledger.make_tenant()
    # Somebody who beat all along: without one, a server started a moment ago has everyone held.
    lively = ledger.make_replica(name="lively", machine="lively")
    Replica.objects.filter(pk=lively.pk).update(started_at=timezone.now() - timedelta(hours=1))
    dead, runs = world.dead_replica(tenant, orphans)
    with ledger.Background(lambda: Replica.objects.filter(pk=lively.pk).update(beat_at=timezone.now()), every=0.1):
        for _ in range(replicas):
            fleet.replica(wait=False)
        until(lambda: not Replica.objects.filter(pk=dead.pk).exists(), fleet.members[0].text, patience(fleet.scale))
    actions = RecoveryAction.objects.filter(replica_name=dead.name, run_id__isnull=False)
    assert sorted(actions.values_list("run_id", flat=True)) == sorted(runs), "each run was claimed once"
    assert len(set(actions.values_list("by", flat=True))) == 1, "by one of them"
    taken = Attempt.objects.filter(run__in=runs, reason="driver_dead")
    assert taken.count() == orphans
    assert set(taken.values_list("number", flat=True)) == {1}
    assert not RecoveryClaim.objects.exists()
    ledger.assert_conserved()


@pytest.mark.rule("R6", "R8", "R11", "G8")
def test_replicas_that_boot_in_the_same_instant_claim_each_run_of_a_dead_one_once(
    make_fleet: Callable[..., Fleet],
) -> None:
    boot_together(make_fleet(), replicas=4, orphans=100)


@pytest.mark.rule("R6", "R8")
def test_a_claimant_that_dies_in_the_middle_is_succeeded_and_the_rest_is_resumed(
    make_fleet: Callable[..., Fleet],
) -> None:
    fleet, ttl = make_fleet(), 8.0
    tenant = ledger.make_tenant()
    witness = ledger.make_replica(name="witness", machine="elsewhere")
    Replica.objects.filter(pk=witness.pk).update(started_at=timezone.now() - timedelta(hours=1))
    with ledger.Background(lambda: Replica.objects.filter(pk=witness.pk).update(beat_at=timezone.now()), every=0.1):
        few = {"CONTROLPLANE_RECOVERY_BATCH_SIZE": "2", "CONTROLPLANE_RECOVERY_CLAIM_TTL_SECONDS": str(ttl)}
        members = [fleet.replica(slots=1, **few) for _ in range(2)]
        dead, runs = world.dead_replica(tenant, 400)
        noted = RecoveryAction.objects.filter(replica_name=dead.name, outcome="requeued")
        first_name = until(lambda: noted.values_list("by", flat=True).first(), members[0].text)
        first, second = sorted(members, key=lambda m: m.name != first_name)
        first.kill()
        assert noted.count() < len(runs), "it died in the middle"
        assert RecoveryClaim.objects.filter(replica=dead).exists(), "its claim stands"
        until(lambda: not Replica.objects.filter(pk=dead.pk).exists(), second.text)
    tick = FULL["recovery_interval_seconds"] * fleet.scale
    succeeded = noted.filter(by=second.name).earliest("at").at.timestamp() - first.killed_at
    print(json.dumps({"succeeded_after": round(succeeded, 1), "ttl": ttl, "tick": tick}))
    assert succeeded <= ttl + 2 * tick + PATIENT_SECONDS
    actions = RecoveryAction.objects.filter(replica_name=dead.name, run_id__isnull=False)
    assert sorted(actions.values_list("run_id", flat=True)) == sorted(runs), "each once, none lost"
    assert set(actions.values_list("by", flat=True)) == {first.name, second.name}


@pytest.fixture
def server(django_db_blocker: Any) -> Iterator[OwnServer]:
    """A PostgreSQL of this test's own, which Django uses meanwhile."""
    with own_server() as made, django_db_blocker.unblock(), django_on(made):
        yield made


def outage(fleet: Fleet, server: OwnServer) -> None:
    """The database is away for twice the window, under load; of three replicas one is killed meanwhile."""
    stale, tick = FULL["replica_stale_seconds"] * fleet.scale, FULL["recovery_interval_seconds"] * fleet.scale
    tenant = ledger.make_tenant()
    for _ in range(3):
        fleet.replica(slots=2)
    runs = fleet.submit(tenant, [600] * 6)
    until(lambda: Run.objects.filter(pk__in=runs, state="running").count() == 6, fleet.members[0].text)
    before = dict(Replica.objects.values_list("name", "incarnation"))
    victim = fleet.members[2]
    theirs = set(Run.objects.filter(driver_name=victim.name).values_list("pk", flat=True))
    epochs = dict(Run.objects.exclude(pk__in=theirs).values_list("pk", "epoch"))
    connections.close_all()
    server.stop()
    try:
        time.sleep(stale)
        victim.kill()
        time.sleep(stale)
    finally:
        server.come_back()
    back = time.time()

    def taken() -> bool:
        return RecoveryAction.objects.filter(outcome="requeued").count() == len(theirs)

    until(taken, fleet.members[0].text, stale + 2 * tick + PATIENT_SECONDS)
    waited = RecoveryAction.objects.filter(outcome="requeued").earliest("at").at.timestamp() - back
    assert waited >= stale * 0.9, "it was held for a window"
    deferred = RecoveryAction.objects.filter(outcome="deferred", run_id=None)
    assert victim.name in set(deferred.values_list("replica_name", flat=True))
    ledger.holds_for(10, lambda: True, lambda: time.sleep(tick / 5))
    touched = RecoveryAction.objects.filter(run_id__isnull=False)
    assert set(touched.values_list("run_id", flat=True)) == theirs, "something of a living replica was reclaimed"
    now = dict(Run.objects.filter(pk__in=epochs).values_list("pk", "epoch"))
    assert now == epochs
    after = dict(Replica.objects.filter(declared_dead_at__isnull=True).values_list("name", "incarnation"))
    assert after == {name: incarnation for name, incarnation in before.items() if name != victim.name}
    print(json.dumps({"away": 2 * stale, "taken_after": round(waited, 1), "window": stale, "tick": tick}))


@pytest.mark.rule("R13", "R2", "R4", "R16")
def test_the_database_is_away_for_twice_the_window_and_no_living_replica_loses_a_run(
    server: OwnServer,
) -> None:
    with Fleet(scale=0.07) as fleet:
        outage(fleet, server)


@soak
@pytest.mark.timeout(1800)
@pytest.mark.rule("R13", "R2", "R4", "R16")
def test_the_database_is_away_for_twice_the_window_as_delivered(server: OwnServer) -> None:
    with Fleet(scale=1.0) as fleet:
        outage(fleet, server)


@pytest.mark.rule("R4", "R16")
def test_an_ordinary_role_that_may_not_read_the_heartbeats_reclaims_nothing_and_says_so(
    make_fleet: Callable[..., Fleet],
) -> None:
    fleet = make_fleet()
    tenant = ledger.make_tenant()
    _, runs = world.dead_replica(tenant, 1)
    with connection.cursor() as cursor:
        cursor.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")
        assert cursor.fetchone() == (False,), "a superuser could read all the same"
        cursor.execute("REVOKE SELECT ON recovery_replica FROM CURRENT_USER")
    try:
        answer = fleet.recover("--json")
    finally:
        with connection.cursor() as cursor:
            cursor.execute("GRANT SELECT ON recovery_replica TO CURRENT_USER")
    assert answer.returncode == 3, answer.stderr
    assert "nothing was reclaimed" in answer.stderr
    report = json.loads(answer.stdout)
    assert "permission denied" in report["error"]
    assert report["requeued"] == 0
    assert ledger.state(runs[0]) == "running"


@pytest.mark.rule("R3", "L9")
def test_recover_by_hand_under_a_living_replicas_own_pinned_id_reclaims_nothing_that_lives(
    make_fleet: Callable[..., Fleet],
) -> None:
    # Two intervals without a beat are taken for death here, so they are longer than a busy machine may hold one up.
    fleet = make_fleet(scale=0.3)
    tenant = ledger.make_tenant(2)
    living = fleet.replica(slots=2)
    runs = fleet.submit(tenant, [600, 600], stop_grace_seconds=0)
    until(lambda: Run.objects.filter(pk__in=runs, state="running").count() == 2, living.text)
    epochs = dict(Run.objects.values_list("pk", "epoch"))

    answer = fleet.recover("--json", CONTROLPLANE_REPLICA_ID=living.name)

    assert answer.returncode == 0, answer.stderr
    report = json.loads(answer.stdout)
    assert report["left_alone"] == [{"replica": living.name, "why": "it lives: it beat while it was watched"}]
    assert dict(Run.objects.values_list("pk", "epoch")) == epochs
    assert living.process.poll() is None
    assert "replica.declared_dead" not in living.text()
    living.kill()
    again = fleet.recover(CONTROLPLANE_REPLICA_ID=living.name)
    assert again.returncode == 0, again.stderr
    assert "requeued             2" in again.stdout
    assert f"done with replica {living.name}" in again.stdout
