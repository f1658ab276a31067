"""Fires: one per due time, executed once, under the term that sent it; never two of one loop at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone
from django_q.models import OrmQ
from django_q.signing import SignedPackage

from controlplane.core.audit import Actor
from controlplane.core.errors import Conflict, InvalidInput, NotFound
from controlplane.core.loops import Gate, Loop, Progress
from controlplane.core.models import AuditEntry
from controlplane.core.sql import rows
from leadership import registry, selectors, sql
from leadership.broker import DatabaseClockBroker
from leadership.election import LOOPS, LeaderElector
from leadership.execution import execute_fire
from leadership.local import declare_loops
from leadership.models import Fire, Lease
from leadership.services.operating import run_now
from leadership.ticker import Ticker
from tests import ledger

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("one_loop")]

ran: list[str] = []


def work() -> Progress:
    ran.append("work")
    return Progress({"rows": 2})


def fails() -> Progress:
    ran.append("fails")
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1/0")
    return Progress()


def three_batches() -> Progress:
    ran.append("batch")
    return Progress({"rows": 1}, more=len(ran) < 3)


def declare(monkeypatch: pytest.MonkeyPatch, *steps: Any, seconds: float = 3600) -> None:
    paths = tuple(f"{__name__}.{step.__name__}" for step in steps)
    loops = {"probe": Loop("probe", Gate.LEADER, lambda: seconds, "a test", paths)}
    monkeypatch.setattr(registry, "loops", lambda: loops)


@pytest.fixture
def one_loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    ran.clear()
    declare(monkeypatch, work)
    yield
    OrmQ.objects.all().delete()


def lead(name: str = "a") -> LeaderElector:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE leadership_lease SET expires_at = clock_timestamp() - interval '1 ms'")
    elector = LeaderElector(name, name)
    elector.tick()
    assert elector.term() is not None
    return elector


def tick(elector: LeaderElector) -> None:
    Ticker(elector.term).tick()


def tasks() -> list[tuple[str, datetime, int]]:
    """What the queue holds, oldest first."""
    loaded = [SignedPackage.loads(q.payload)["args"] for q in OrmQ.objects.order_by("id")]
    return [(loop, datetime.fromisoformat(fire_at), term) for loop, fire_at, term in loaded]


@pytest.mark.rule("L11", "L7")
def test_one_due_time_is_one_fire_and_one_task_whoever_ticks() -> None:
    elector = lead()
    for call in [ledger.Concurrent(tick, elector) for _ in range(4)]:
        call.result()
    tick(elector)
    assert Fire.objects.count() == 1
    assert len(tasks()) == 1
    assert execute_fire(*tasks()[0]) == "done"
    tick(elector)
    assert Fire.objects.count() == 1, "its time has been"


@pytest.mark.rule("L5", "L7")
def test_who_does_not_lead_sends_nothing(django_assert_num_queries: Any) -> None:
    lead("a")
    follower = LeaderElector("b", "b")
    follower.tick()
    with django_assert_num_queries(0):
        tick(follower)
    assert not Fire.objects.exists()


@pytest.mark.rule("L11")
def test_a_task_delivered_twice_is_executed_once() -> None:
    tick(lead())
    [task] = tasks()
    assert [execute_fire(*task), execute_fire(*task)] == ["done", "superseded"]
    assert ran == ["work"]
    fire = Fire.objects.get()
    assert (fire.state, fire.result) == ("done", {"rows": 2})
    assert fire.worker
    assert fire.finished_at is not None


@pytest.mark.rule("L11")
def test_a_fire_left_undone_is_taken_over_by_the_next_term_and_the_old_task_does_nothing() -> None:
    tick(lead("a"))
    [old] = tasks()
    tick(lead("b"))
    assert Fire.objects.get().term == 2
    new = tasks()[1]
    assert (new[:2], new[2]) == (old[:2], 2)
    assert [execute_fire(*old), execute_fire(*new)] == ["superseded", "done"]
    assert ran == ["work"]


@pytest.mark.rule("L11")
def test_what_a_replaced_leader_sends_late_is_taken_over_too() -> None:
    old, new = lead("a"), lead("b")
    late = {"term": 1, "loops": ["probe"], "periods": [3600.0]}
    ticker = Ticker(new.term)
    ticker.tick()
    Fire.objects.all().delete()
    assert len(rows(sql.ENQUEUE, late)) == 1
    assert old.term() == 1, "it has not looked yet"
    ticker.tick()
    assert Fire.objects.get().term == 2
    assert execute_fire(*tasks()[-1]) == "done"


@pytest.mark.rule("L11")
def test_a_fire_whose_executor_died_under_a_lost_leader_is_executed_again() -> None:
    tick(lead("a"))
    Fire.objects.update(started_at=timezone.now(), progress_at=timezone.now(), worker="gone")
    tick(lead("b"))
    assert execute_fire(*tasks()[1]) == "done"


@pytest.mark.rule("L7")
def test_a_loop_never_overlaps_itself_and_goes_on_with_the_time_that_is_due_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    declare(monkeypatch, work, seconds=0.2)
    elector = lead()
    tick(elector)
    time.sleep(0.5)
    tick(elector)
    assert Fire.objects.count() == 1, "the first is undone: nothing is sent beside it"
    assert execute_fire(*tasks()[0]) == "done"
    tick(elector)
    first, second = Fire.objects.order_by("fire_at")
    assert (second.fire_at - first.fire_at).total_seconds() >= 0.4


@pytest.mark.rule("L7")
def test_a_failed_step_is_recorded_the_others_run_and_the_loop_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, fails, work, fails, seconds=0.2)
    elector = lead()
    tick(elector)
    assert execute_fire(*tasks()[0]) == "failed"
    assert ran == ["fails", "work", "fails"]
    fire = Fire.objects.get()
    assert fire.state == "failed"
    assert fire.error.count("DivisionByZero") == 2 or fire.error.count("division by zero") == 2
    assert fire.result == {"rows": 2}
    time.sleep(0.2)
    tick(elector)
    assert Fire.objects.filter(state="undone").count() == 1


@pytest.mark.rule("L6")
def test_a_long_sweep_is_one_transaction_a_batch_and_stops_at_the_batch_after_its_term_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    declare(monkeypatch, three_batches)
    tick(lead())
    assert execute_fire(*tasks()[0]) == "done"
    assert (ran, Fire.objects.get().result) == (["batch"] * 3, {"rows": 3})

    def replaced() -> Progress:
        ran.append("batch")
        with ledger.connected() as other:
            other.execute("UPDATE leadership_lease SET expires_at = clock_timestamp()")
        return Progress({"rows": 1}, more=True)

    ran.clear()
    Fire.objects.all().delete()
    tick(lead("b"))
    monkeypatch.setattr(registry, "step", lambda path: replaced)
    assert execute_fire(*tasks()[-1]) == "superseded"
    assert ran == ["batch"]
    assert Fire.objects.get().state == "undone"


@pytest.mark.rule("L7")
def test_a_started_sweep_that_fell_silent_is_failed_and_cannot_end_any_more(settings: Any) -> None:
    settings.CONTROLPLANE = {**settings.CONTROLPLANE, "fire_silent_seconds": 0.2, "sweep_transaction_seconds": 0.1}
    elector = lead()
    tick(elector)
    fire = Fire.objects.get()
    ledger.one(sql.START_FIRE, {"loop": fire.loop, "fire_at": fire.fire_at, "term": 1, "worker": "w"})
    time.sleep(0.25)
    tick(elector)
    fire.refresh_from_db()
    assert (fire.state, "silent" in fire.error) == ("failed", True)
    assert ledger.one(sql.PROGRESS_FIRE, {"fire": fire.pk, "term": 1}) is None
    assert execute_fire(fire.loop, fire.fire_at, 1) == "superseded"


@pytest.mark.rule("L7")
def test_without_a_qcluster_there_is_an_alarm_one_waiting_fire_and_everything_else_goes_on(settings: Any) -> None:
    settings.CONTROLPLANE = {**settings.CONTROLPLANE, "fire_untaken_seconds": 0.2}
    declare_loops()
    assert [a.code for a in selectors.read_alarms()] == ["no_leader"]
    elector = lead()
    for _ in range(3):
        tick(elector)
    assert selectors.read_alarms() == []
    time.sleep(0.3)
    tick(elector)
    assert [a.code for a in selectors.read_alarms()] == ["no_qcluster"]
    assert len(tasks()) == Fire.objects.count() == 1
    assert execute_fire(*tasks()[0]) == "done"
    assert selectors.read_alarms() == []


@pytest.mark.rule("L7")
def test_a_fire_whose_task_was_purged_is_sent_again(settings: Any) -> None:
    settings.CONTROLPLANE = {**settings.CONTROLPLANE, "fire_untaken_seconds": 0.1}
    elector = lead()
    tick(elector)
    OrmQ.objects.all().delete()
    time.sleep(0.15)
    tick(elector)
    assert execute_fire(*tasks()[0]) == "done"


@pytest.mark.rule("G5", "L7")
@pytest.mark.parametrize("hours", [-1, 1])
def test_tasks_are_taken_at_once_whatever_the_wall_clocks_of_sender_and_taker_say(
    monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    real = timezone.now
    monkeypatch.setattr(timezone, "now", lambda: real() + timedelta(hours=hours))
    tick(lead())
    monkeypatch.setattr(timezone, "now", lambda: real() - timedelta(hours=hours))
    first, second = DatabaseClockBroker(), DatabaseClockBroker()
    taken = first.dequeue()
    assert taken is not None
    assert second.dequeue() is None, "handed out once"
    assert (first.queue_size(), first.lock_size()) == (0, 1)
    first.acknowledge(taken[0][0])
    assert not OrmQ.objects.exists()


@pytest.mark.rule("L8", "O2")
def test_an_operator_runs_a_loop_now_and_it_is_audited() -> None:
    lead()
    fire_at = run_now("probe", actor=Actor("olga"), reason="after the restore")
    assert execute_fire(*tasks()[0]) == "done"
    assert Fire.objects.get(fire_at=fire_at).asked_by == "olga"
    entry = AuditEntry.objects.get(verb="run_now")
    assert (entry.subject, entry.actor, entry.reason) == ("probe", "olga", "after the restore")


def test_running_a_loop_now_is_refused_where_it_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    olga = Actor("olga")
    with pytest.raises(Conflict, match="Nobody leads"):
        run_now("probe", actor=olga, reason="x")
    tick(lead())
    with pytest.raises(Conflict, match="never overlaps"):
        run_now("probe", actor=olga, reason="x")
    with pytest.raises(InvalidInput):
        run_now("probe", actor=olga, reason="")
    with pytest.raises(NotFound, match="no loop"):
        run_now("prob", actor=olga, reason="x")
    assert not AuditEntry.objects.exists()


def test_a_loop_that_the_clusters_code_does_not_know_is_a_visible_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    tick(lead())
    monkeypatch.setattr(registry, "loops", dict)
    assert execute_fire(*tasks()[0]) == "failed"
    assert "no such loop" in Fire.objects.get().error


@pytest.mark.rule("L8")
def test_operators_see_each_loops_last_run_result_and_place(monkeypatch: pytest.MonkeyPatch) -> None:
    declare_loops()
    [before] = selectors.read_loops()
    assert (before.loop, before.state, before.last_at) == ("probe", None, None)
    tick(lead())
    execute_fire(*tasks()[0])
    [after] = selectors.read_loops()
    assert (after.state, after.result, after.term, after.error) == ("done", {"rows": 2}, 1, "")
    assert after.place
    assert after.took_seconds is not None
    [lease] = selectors.read_leases()
    assert (lease.led, lease.holder_name) == (True, "a")
    assert 0 < lease.seconds_left <= 30
    assert Lease.objects.get().role == LOOPS
