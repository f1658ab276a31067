"""Silence that an outage may explain is not death yet (rule R13); silence of a single replica is."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from admission.models import Tenant
from controlplane.core.conf import conf
from recovery.models import RecoveryAction, RecoveryClaim, Replica
from recovery.selectors import read_standing
from recovery.services import holding
from recovery.services.deaths import declare_and_claim
from recovery.services.orphans import Dead
from recovery.services.reconcile import reconcile
from recovery.services.replicas import beat, replica_driver
from recovery.services.reporting import Report
from recovery.services.situation import Silent, Situation, read_situation, together_seconds
from tests import ledger

pytestmark = pytest.mark.django_db(transaction=True)


def one_pass(self_id: int | None = None, **options: Any) -> Report:
    return reconcile(claimant=str(uuid.uuid4()), by="a test", self_id=self_id, **options)


def silent(seconds: float, **changes: Any) -> Replica:
    made = ledger.make_replica(**{"machine": uuid.uuid4().hex, **changes})
    Replica.objects.filter(pk=made.pk).update(beat_at=timezone.now() - timedelta(seconds=seconds))
    return made


def came_back(seconds_ago: float, *, away: float = 35) -> Replica:
    """A living replica whose own beats failed for a while, until so many seconds ago."""
    made = ledger.make_replica()
    moment = timezone.now()
    resumed = moment - timedelta(seconds=seconds_ago)
    Replica.objects.filter(pk=made.pk).update(
        started_at=moment - timedelta(hours=1), resumed_at=resumed, gap_from=resumed - timedelta(seconds=away)
    )
    return made


def heard(since: float, until: float) -> Replica:
    """A replica that beat without a gap between so many seconds ago and so many."""
    made, moment = ledger.make_replica(machine=uuid.uuid4().hex), timezone.now()
    Replica.objects.filter(pk=made.pk).update(
        started_at=moment - timedelta(seconds=since), beat_at=moment - timedelta(seconds=until)
    )
    return made


def test_a_beat_after_a_gap_notes_the_gap_and_an_ordinary_one_does_not() -> None:
    replica = silent(20)
    assert beat(replica.pk) is False
    assert Replica.objects.get(pk=replica.pk).resumed_at is None
    Replica.objects.filter(pk=replica.pk).update(beat_at=timezone.now() - timedelta(seconds=31))
    beat(replica.pk)
    noted = Replica.objects.get(pk=replica.pk)
    assert noted.resumed_at is not None
    assert noted.gap_from is not None
    assert 31 <= (noted.resumed_at - noted.gap_from).total_seconds() < 90
    beat(replica.pk)
    after = Replica.objects.get(pk=replica.pk)
    assert (after.gap_from, after.resumed_at) == (noted.gap_from, noted.resumed_at)


@pytest.mark.rule("R13", "R16")
def test_after_an_outage_the_silent_are_held_for_one_window_once_and_then_taken(
    make_tenant: Callable[..., Tenant],
) -> None:
    tenant, alive, dead = make_tenant(1), came_back(1), silent(180)
    ledger.submit(tenant)
    ledger.admit_all(replica_driver(dead))

    for look in range(3):
        report = one_pass(alive.pk)
        assert (report.deferred, report.requeued) == (1, 0), look
        assert report.left_alone[0]["replica"] == dead.name
    assert RecoveryAction.objects.filter(outcome="deferred").count() == 1, "written when it began"
    assert not RecoveryClaim.objects.exists()
    held = Replica.objects.get(pk=dead.pk)
    assert held.held_until is not None
    assert read_standing().held == 1
    assert not declare_and_claim(dead.pk, claimant="one who scanned before", proof="stale")

    # The window passes. The sign of the outage is still there, and no second hold is taken for this silence.
    Replica.objects.filter(pk=dead.pk).update(held_until=timezone.now() - timedelta(seconds=1))
    assert one_pass(alive.pk).requeued == 1
    assert not Replica.objects.filter(pk=dead.pk).exists()


@pytest.mark.rule("R13")
def test_who_beats_during_the_hold_is_free_of_it() -> None:
    alive, away = came_back(1), silent(180)
    one_pass(alive.pk)
    assert beat(away.pk) is False
    assert Replica.objects.get(pk=away.pk).held_until is None
    assert one_pass(alive.pk).as_dict() == Report().as_dict()


@pytest.mark.rule("R13")
def test_our_own_beats_that_have_not_come_back_yet_are_a_sign_too() -> None:
    own, other = silent(180), silent(180)
    report = one_pass(own.pk)
    assert report.deferred == 1
    assert report.left_alone[0]["replica"] == other.name


@pytest.mark.rule("R13", "R5")
def test_a_witness_who_beat_all_through_says_that_the_database_was_there(witness: Replica) -> None:
    came_back(1)
    dead = silent(180)
    assert one_pass().finished == [dead.name]


@pytest.mark.rule("R13", "R5")
@pytest.mark.parametrize(
    ("since", "until", "held"),
    [
        pytest.param(41, 0, 0, id="younger than the window, heard all through the gap"),
        pytest.param(60, 4, 0, id="heard all through the gap, silent since"),
        pytest.param(30, 0, 1, id="came during the gap: the database may have come back with it"),
        pytest.param(600, 36, 1, id="heard until the gap began, silent as the other was"),
    ],
)
def test_a_late_replica_is_no_outage_where_another_was_heard_all_through_its_gap(
    since: float, until: float, held: int
) -> None:
    late, dead = came_back(5), silent(180)
    other = heard(since, until)
    found = read_situation(late.pk)
    assert not found.witnessed, "nobody beat for the whole window"
    assert found.resumed is bool(held)
    report = one_pass(late.pk)
    assert (report.deferred, report.finished) == (held, [] if held else [dead.name])
    assert other.name not in report.finished


@pytest.mark.rule("R13")
def test_a_replica_that_died_after_the_gap_is_heard_as_well_and_one_that_was_away_too_is_not() -> None:
    late, dead, other = came_back(5), silent(180), heard(80, 0)
    Replica.objects.filter(pk=other.pk).update(declared_dead_at=timezone.now())
    assert not read_situation(late.pk).resumed
    Replica.objects.filter(pk=other.pk).update(resumed_at=timezone.now() - timedelta(seconds=3))
    assert one_pass(late.pk).deferred == 1
    assert Replica.objects.filter(pk=dead.pk, held_why=holding.OUTAGE).exists()


@pytest.mark.rule("R13")
def test_the_hold_of_an_outage_that_is_a_window_ago_is_over() -> None:
    alive, dead = came_back(conf().replica_stale_seconds + 1), silent(180)
    assert one_pass(alive.pk).finished == [dead.name]


def _situation(**changes: Any) -> Situation:
    """As read, with some of it changed."""
    found = read_situation(None)
    return Situation(**{name: getattr(found, name) for name in Situation.__slots__} | changes)


@pytest.mark.rule("R13")
def test_a_restart_of_the_server_within_the_window_is_a_sign_unless_somebody_beat_through_it() -> None:
    dead = silent(180)
    assert holding.judge(_situation(restarted=True, witnessed=False, resumed=False)) == {dead.pk: holding.OUTAGE}
    assert holding.judge(_situation(restarted=True, witnessed=True)) == {}
    assert holding.judge(_situation(restarted=False, witnessed=False, resumed=False)) == {}


def _fell(ages: Sequence[float], living: int) -> Situation:
    """Peers that fell silent so many seconds ago, and so many that beat."""
    dead = [
        Silent(Dead(n, f"r{n}", "", "", "", 0, 0, ""), False, True, "", age, None, "", None, False)
        for n, age in enumerate(ages)
        if age > 90
    ]
    nearly = [age for age in ages if age > 90 - together_seconds()]
    return _situation(dead=dead, silent=nearly, peers=len(ages) + living, restarted=False, resumed=False)


@pytest.mark.rule("R13")
def test_most_of_three_or_more_falling_silent_at_once_is_held() -> None:
    for ages, living, held in (
        ((95, 97, 99), 0, [0, 1, 2]),
        ((95, 97), 1, [0, 1]),
        ((95, 80), 1, []),  # 15 s apart
        ((91, 85), 1, [0]),  # together; the second is not stale yet
        ((95, 97), 2, []),  # two of four are not more than half
        ((95, 97), 0, []),  # two are too few to tell
        ((95, 120, 150), 0, []),  # one after the other
        ((95, 97, 99, 500), 1, [0, 1, 2]),  # three of five; the one long dead is not meant
    ):
        assert sorted(holding.judge(_fell(ages, living))) == held, (ages, living)


@pytest.mark.rule("R13")
def test_three_of_four_that_fell_silent_together_are_held_and_the_survivor_says_so(witness: Replica) -> None:
    for age in (95, 97, 99):
        silent(age)
    report = one_pass(witness.pk)
    assert (report.deferred, report.finished) == (3, [])
    assert set(Replica.objects.exclude(pk=witness.pk).values_list("held_why", flat=True)) == {holding.TOGETHER}


@pytest.mark.rule("R13", "R3")
def test_the_own_pinned_id_is_exempt() -> None:
    alive, earlier = came_back(1), silent(180, name="pinned")
    assert declare_and_claim(earlier.pk, claimant=str(alive.incarnation), proof="unchanged", seen=_beat(earlier))
    report = reconcile(claimant=str(alive.incarnation), by="pinned", self_id=alive.pk)
    assert report.finished == ["pinned"]


def _beat(replica: Replica) -> Any:
    return Replica.objects.get(pk=replica.pk).beat_at


@pytest.mark.rule("R13", "R3")
def test_who_came_a_moment_ago_and_hears_nobody_looks_again_before_judging(witness: Replica) -> None:
    Replica.objects.filter(pk=witness.pk).delete()
    own, dead = ledger.make_replica(), silent(180)
    found = read_situation(own.pk)
    assert holding.is_unsure(found)
    Replica.objects.filter(pk=own.pk).update(started_at=timezone.now() - timedelta(seconds=21))
    assert not holding.is_unsure(read_situation(own.pk))
    assert not holding.is_unsure(read_situation(None))
    ledger.make_replica()
    Replica.objects.filter(pk=own.pk).update(started_at=timezone.now())
    assert not holding.is_unsure(read_situation(own.pk)), "somebody else is heard: the silent one is dead"
    assert dead.pk in {s.dead.id for s in found.dead}


@pytest.mark.rule("R10", "R3")
def test_a_dead_replica_is_left_to_a_living_one_of_its_machine_for_two_ticks(witness: Replica) -> None:
    dead = silent(95, machine="theirs")
    ledger.make_replica(machine="theirs")
    assert "left to a living replica" in one_pass().left_alone[0]["why"]
    assert one_pass(machine="theirs").finished == [dead.name]
    late = silent(90 + 2 * conf().recovery_interval_seconds + 1, machine="theirs")
    assert one_pass().finished == [late.name], "it does not wait for ever"
