"""Whole `manage.py replica` processes: leadership under faults, and two of them under one pinned id."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from django.db import connection
from django_q.models import OrmQ

from leadership.models import Term
from recovery.models import Replica
from recovery.replica.process import EXIT_DECLARED_DEAD
from tests.leadership.pooler import logins, pgbouncer
from tests.leadership.replicas import Fleet
from tests.leadership.storm import Storm, gaps, unexplained
from tests.leadership.world import beliefs, counted, overlaps, until

LEASE, PERIOD = 3.0, 0.5
BUSY_SECONDS = 6.0
BOUND = LEASE + LEASE / 15 + BUSY_SECONDS
"""Of a leader killed between its transactions; the last term is what the queue adds, and a machine on which another
worker starts containers and servers meanwhile. The soak form has the exact bound."""

PINNED = {"CONTROLPLANE_HEARTBEAT_INTERVAL_SECONDS": "1.5", "CONTROLPLANE_REPLICA_STALE_SECONDS": "60"}


@pytest.mark.rule("L1", "L3", "L6", "L11", "G5")
def test_replicas_killed_and_paused_have_one_believer_at_a_time_and_no_due_time_runs_twice(
    make_fleet: Callable[..., Fleet],
) -> None:
    storm_of_ci(make_fleet(lease=LEASE, COUNT_SECONDS=str(PERIOD)))


@pytest.mark.rule("G9", "L1", "L6", "L11")
def test_the_same_through_a_pooler_in_transaction_mode(make_fleet: Callable[..., Fleet], tmp_path: Path) -> None:
    fleet = make_fleet(lease=LEASE, COUNT_SECONDS=str(PERIOD))
    with pgbouncer(fleet.url, tmp_path, connections=8) as pooled:
        fleet.environment["DATABASE_DIRECT_URL"], fleet.application_url = fleet.url, pooled
        storm_of_ci(fleet)
        fleet.end()
    assert logins(tmp_path) > len(fleet.labels), "the replicas did not come through the pooler"


def storm_of_ci(fleet: Fleet) -> None:
    """Three replicas, one of them an hour ahead and one behind; two are killed, one is paused past its lease."""
    OrmQ.objects.all().delete()
    for number, fake in enumerate(("", "+1h", "-1h")):
        fleet.replica(f"node-{number}", fake=fake)
    fleet.cluster("cluster-0")
    until(lambda: len(counted(fleet.url)) > 1, "nothing ran")
    until(lambda: all(fleet.started(label) for label in fleet.labels), "not all replicas work")
    began = time.time()
    storm = Storm(fleet, bound=BOUND, calm=1.0)
    for fault in (storm.kill, storm.pause, storm.kill):
        fault()

    spans = beliefs(fleet.lines())
    assert len({span.term for span in spans}) >= 4
    assert overlaps(spans) == []
    due = [row[0] for row in counted(fleet.url)]
    assert len(set(due)) == len(due), "a due time was executed twice"
    since = [at for at in due if at.timestamp() >= began]
    assert unexplained(gaps(since, PERIOD), storm.faults, PERIOD) == []


@pytest.mark.rule("L9")
def test_a_second_process_under_one_pinned_id_refuses_while_the_first_lives_and_takes_over_once_it_is_gone(
    make_fleet: Callable[..., Fleet],
) -> None:
    fleet = make_fleet()
    first = fleet.replica("pinned", **PINNED)
    until(lambda: fleet.started(first), "the first does not work")

    second = fleet.replica("pinned", **PINNED)
    assert fleet.processes[second].wait(60) == 1
    said = fleet.log(second)
    assert "A living replica beats as 'pinned' already." in said
    assert "CONTROLPLANE_REPLICA_ID" in said
    assert not fleet.events(second, "replica.started")
    assert fleet.started(first), "the first goes on"

    fleet.kill(first)
    third = fleet.replica("pinned", **PINNED)
    until(lambda: fleet.started(third), "the third does not take over")
    assert _living() == [fleet.processes[third].pid]


@pytest.mark.rule("L9")
def test_a_silent_process_under_the_pinned_id_is_taken_over_and_leaves_when_it_wakes(
    make_fleet: Callable[..., Fleet],
) -> None:
    fleet = make_fleet()
    first = fleet.replica("pinned", **PINNED)
    until(lambda: fleet.started(first), "the first does not work")
    fleet.processes[first].send_signal(signal.SIGSTOP)
    second = fleet.replica("pinned", **PINNED)
    until(lambda: fleet.started(second), "the second does not take over")
    fleet.processes[first].send_signal(signal.SIGCONT)
    assert fleet.processes[first].wait(60) == EXIT_DECLARED_DEAD
    assert _living() == [fleet.processes[second].pid]


def _living() -> list[int]:
    return list(Replica.objects.filter(name="pinned", declared_dead_at__isnull=True).values_list("pid", flat=True))


@pytest.mark.rule("L4")
def test_after_the_database_was_restarted_a_clean_stop_still_hands_the_lease_back_and_leaves(
    make_fleet: Callable[..., Fleet],
) -> None:
    fleet = make_fleet(lease=30.0)
    label = fleet.replica("node-0")
    until(lambda: fleet.started(label), "it does not work")
    fleet.leader()
    with connection.cursor() as cursor:
        # What a restart does to every connection that was open, the one of the process's main thread included.
        cursor.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        assert cursor.fetchone()[0] > 0
    time.sleep(2)
    fleet.processes[label].terminate()
    assert fleet.processes[label].wait(30) == 0, fleet.log(label)[-2000:]
    assert set(Term.objects.values_list("ended_because", flat=True)) == {"resigned"}
    assert not Replica.objects.filter(declared_dead_at__isnull=True).exists()
