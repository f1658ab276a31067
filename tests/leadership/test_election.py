"""The lease: who wins, what is believed, and for how long."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db import DatabaseError, connection

from controlplane.core.audit import SYSTEM, Actor
from controlplane.core.errors import Conflict, InvalidInput
from controlplane.core.models import AuditEntry
from leadership import sql
from leadership.belief import Belief, now
from leadership.election import LOOPS, LeaderElector
from leadership.models import Lease, Term
from leadership.services.operating import step_down
from tests import ledger

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("quick")]

Connect = Callable[..., psycopg.Connection[Any]]


def expire() -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE leadership_lease SET expires_at = clock_timestamp() - interval '1 ms'")


def lead(name: str = "a") -> LeaderElector:
    elector = LeaderElector(f"{name}-incarnation", name)
    elector.tick()
    assert elector.term() is not None
    return elector


@pytest.mark.rule("L1")
def test_of_many_that_try_at_once_one_wins_a_term(transactional_db: None) -> None:
    electors = [LeaderElector(f"h{n}", f"n{n}") for n in range(8)]
    for call in [ledger.Concurrent(e.tick) for e in electors]:
        call.result()
    assert [e.term() for e in electors if e.term()] == [1]
    assert Term.objects.count() == 1


@pytest.mark.rule("L1")
def test_followers_look_with_a_plain_read_and_do_not_try_while_it_is_held(django_assert_num_queries: Any) -> None:
    lead("a")
    follower = LeaderElector("b", "b")
    with django_assert_num_queries(1) as seen:
        follower.tick()
    assert seen.captured_queries[0]["sql"].lstrip().startswith("SELECT")
    assert follower.term() is None


@pytest.mark.rule("L2")
def test_the_term_grows_whenever_the_lease_is_won_also_by_the_same_holder() -> None:
    elector = lead("a")
    expire()
    time.sleep(0.61)  # its belief has run out: without belief it does not renew, it wins anew
    elector.tick()
    assert elector.term() == 2
    first = Term.objects.get(term=1)
    assert first.ended_because == "expired"
    assert Term.objects.get(term=2).ended_at is None


@pytest.mark.rule("L2")
def test_a_late_answer_of_an_old_term_touches_nothing() -> None:
    old = lead("a")
    expire()
    new = lead("b")
    before = Lease.objects.values().get()
    who = {"role": LOOPS, "holder": "a-incarnation", "term": old.term(), "ttl": 100, "because": "resigned"}
    assert ledger.one(sql.RENEW, who) is None
    assert ledger.one(sql.RESIGN, who) is None
    assert ledger.one(sql.RENEW, who | {"term": new.term()}) is None
    assert Lease.objects.values().get() == before


@pytest.mark.rule("L3", "G5")
def test_belief_counts_from_before_the_query_was_sent(connect: Connect) -> None:
    lead("a").resign()
    blocker, observer = connect(), connect(autocommit=True)
    blocker.execute("SELECT FROM leadership_lease FOR UPDATE")
    elector = LeaderElector("b", "b")
    call = ledger.Concurrent(elector.tick)
    ledger.until_waiting(observer, call)
    time.sleep(0.61)  # longer than belief lasts: the answer comes too late to be believed
    blocker.rollback()
    call.result()
    assert Lease.objects.get().holder == "b"
    assert elector.term() is None


@pytest.mark.rule("L3")
def test_a_refused_renewal_ends_belief_at_once() -> None:
    elector = lead("a")
    Lease.objects.update(holder="somebody else")
    time.sleep(0.3)
    elector.tick()
    assert elector.term() is None


@pytest.mark.rule("L3")
def test_a_leader_whose_lease_is_another_term_in_the_database_stops_at_its_next_look() -> None:
    elector = lead("a")
    Lease.objects.update(term=7)
    elector.tick()
    assert elector.term() is None


@pytest.mark.rule("L3")
def test_a_renewal_that_errors_lets_belief_decay(monkeypatch: pytest.MonkeyPatch) -> None:
    elector = lead("a")
    time.sleep(0.3)
    monkeypatch.setattr(sql, "RENEW", "SELECT 1/0")
    with pytest.raises(DatabaseError):
        elector.tick()
    assert elector.term() == 1
    time.sleep(0.35)
    assert elector.term() is None


@pytest.mark.rule("L3")
def test_no_renewal_is_sent_without_belief(django_assert_num_queries: Any) -> None:
    elector = lead("a")
    time.sleep(0.65)
    left = Lease.objects.values_list("expires_at", flat=True).get()
    with django_assert_num_queries(1):
        elector.tick()  # looks, as a follower does
    assert Lease.objects.values_list("expires_at", flat=True).get() == left


@pytest.mark.rule("L3", "L4")
def test_belief_ends_before_the_resignation_is_sent(connect: Connect) -> None:
    elector = lead("a")
    blocker, observer = connect(), connect(autocommit=True)
    blocker.execute("SELECT FROM leadership_lease FOR UPDATE")
    call = ledger.Concurrent(elector.resign)
    ledger.until_waiting(observer, call)
    assert elector.term() is None
    blocker.rollback()
    call.result()
    assert Term.objects.get().ended_because == "resigned"


@pytest.mark.rule("L4")
def test_a_lease_handed_back_is_won_at_the_next_look_and_its_former_holder_competes_no_more() -> None:
    old = lead("a")
    old.resign()
    new = lead("b")
    assert new.term() == 2
    old.resign()
    old.tick()
    assert (new.term(), old.term()) == (2, None)
    assert Lease.objects.get().holder_name == "b"


@pytest.mark.rule("L4", "O2")
def test_an_operator_asks_the_leader_to_step_down_and_it_does_so_itself() -> None:
    leader, other = lead("a"), LeaderElector("b", "b")

    asked = step_down(actor=Actor("olga"), reason="host is being patched")

    assert (asked.term, asked.holder_name) == (1, "a")
    other.tick()
    assert (leader.term(), other.term()) == (1, None), "until the holder has read it, it still believes"
    leader.tick()
    assert leader.term() is None
    leader.tick()  # stands back
    other.tick()
    assert (leader.term(), other.term()) == (None, 2)
    ended = Term.objects.get(term=1)
    assert (ended.ended_because, ended.note) == ("step_down", "olga: host is being patched")
    entry = AuditEntry.objects.get(verb="step_down")
    assert (entry.actor, entry.reason, entry.before) == ("olga", "host is being patched", {"term": 1, "holder": "a"})


@pytest.mark.rule("L4")
def test_the_only_replica_leads_again_after_it_stepped_down() -> None:
    leader = lead("a")
    step_down(actor=SYSTEM, reason="a test")
    leader.tick()
    time.sleep(0.31)
    leader.tick()
    assert leader.term() == 2
    assert Lease.objects.get().step_down_at is None


@pytest.mark.rule("L4")
def test_stepping_down_is_refused_where_nobody_leads_and_without_a_reason() -> None:
    with pytest.raises(Conflict, match="Nobody leads"):
        step_down(actor=SYSTEM, reason="a test")
    lead("a")
    with pytest.raises(InvalidInput):
        step_down(actor=SYSTEM, reason=" ")
    assert not AuditEntry.objects.exists()


@pytest.mark.rule("L6")
def test_a_renewal_does_not_wait_for_a_sweep_and_a_takeover_does(connect: Connect) -> None:
    elector = lead("a")
    sweep, observer = connect(), connect(autocommit=True)
    sweep.execute(sql.PROVE_TERM, {"role": LOOPS, "term": 1})
    time.sleep(0.3)
    elector.tick()
    assert elector.term() == 1
    expire()
    other = LeaderElector("b", "b")
    call = ledger.Concurrent(other.tick)
    ledger.until_waiting(observer, call)
    sweep.rollback()
    call.result()
    assert Lease.objects.get().holder_name == "b"


@pytest.mark.rule("L6")
def test_an_expired_term_is_not_proved_also_if_nobody_took_it() -> None:
    lead("a")
    expire()
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        assert ledger.one(sql.PROVE_TERM, {"role": LOOPS, "term": 1}) is None
        cursor.execute("ROLLBACK")


@pytest.mark.rule("L10")
def test_belief_is_of_one_process() -> None:
    belief = Belief(term=1, sent_at=now(), until=now() + 60, pid=-1)
    assert not belief.holds()
    assert Belief.from_query(1, now(), 60).holds()


def test_two_roles_are_led_apart() -> None:
    loops, other = lead("a"), LeaderElector("b", "b", role="another")
    other.tick()
    assert (loops.term(), other.term()) == (1, 1)
    assert set(Lease.objects.values_list("role", flat=True)) == {LOOPS, "another"}
