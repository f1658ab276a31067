"""Replicas' leadership and qclusters together: every gated sweep once per period, wherever its task lands."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from django_q.models import OrmQ

from leadership import selectors
from leadership.models import Fire
from tests.leadership.pooler import logins, pgbouncer
from tests.leadership.world import World, beliefs, counted, overlaps, until

SECONDS = 8.0


@pytest.fixture(autouse=True)
def empty_queue(transactional_db: None) -> None:
    OrmQ.objects.all().delete()


def run_fleet(world: World, nodes: int) -> None:
    """Members and as many clusters, until the first fire ran."""
    for number in range(nodes):
        world.member(f"node-{number}")
        world.cluster(f"cluster-{number}", COUNT_NODE=f"node-{number}")
    until(lambda: len(counted(world.url)) > 1, f"nothing ran: {world.log('cluster-0')[-2000:]}")


@pytest.mark.rule("L7", "L11")
def test_three_replicas_and_three_clusters_run_each_sweep_once_a_period_and_the_naive_check_loses_two_thirds(
    make_world: Callable[..., World],
) -> None:
    world = make_world(lease=6.0, COUNT_NAIVE="1", COUNT_SECONDS="0.5")
    run_fleet(world, 3)
    until(lambda: _clusters(world) == 3, "not all clusters work")
    started = len(counted(world.url))
    time.sleep(SECONDS)

    due = [row[0] for row in counted(world.url)][started:]
    assert len(due) >= SECONDS / 0.5 - 3
    assert len(set(due)) == len(due), "a due time was executed twice"
    assert _left_out(due, 0.5) == []
    fires = Fire.objects.filter(loop="naive", state="done", fire_at__gte=due[0]).count()
    naive = [row for row in counted(world.url, "naive") if row[0] >= due[0]]
    assert fires >= SECONDS / 0.5 - 3
    assert len(naive) < 0.7 * fires, "the red variant: most of its tasks land where nobody leads"
    assert Fire.objects.filter(state="failed").count() == 0
    assert overlaps(beliefs(world.lines())) == []


def _left_out(due: Sequence[datetime], period: float) -> list[datetime]:
    """Due times that did not run although nothing was under way then: a slow fire is waited for, on a busy machine."""
    ended = dict(Fire.objects.filter(loop="count").values_list("fire_at", "finished_at"))
    step = timedelta(seconds=period)
    return [a + step for a, b in pairwise(sorted(due)) if b - a > 1.5 * step and (ended[a] or b) < a + step]


def _clusters(world: World) -> int:
    """How many clusters executed something: a worker's process group is its cluster."""
    groups = {p.pid: name for name, p in world.processes.items() if name.startswith("cluster")}
    seen = set()
    for worker in Fire.objects.exclude(worker="").values_list("worker", flat=True).distinct():
        stat = Path(f"/proc/{worker.split(':')[1]}/stat")
        if stat.exists():
            seen.add(groups.get(int(stat.read_text().rpartition(")")[2].split()[2])))
    return len(seen)


@pytest.mark.rule("L7")
def test_a_fleet_without_a_cluster_says_so_and_goes_on_when_one_comes(make_world: Callable[..., World]) -> None:
    world = make_world(lease=6.0)
    world.member("node-0")
    world.leader()
    until(lambda: Fire.objects.filter(state="undone", loop="count").exists(), "nothing was sent")
    time.sleep(2)
    waiting = OrmQ.objects.count()
    assert waiting == Fire.objects.filter(state="undone").count(), "one task a loop waits, no more"
    world.cluster("cluster-0", COUNT_NODE="node-0")
    until(lambda: len(counted(world.url)) > 2, "it does not go on")
    assert all(a.code != "no_qcluster" for a in selectors.read_alarms())
    due = [row[0] for row in counted(world.url)]
    assert len(set(due)) == len(due)


@pytest.mark.rule("G9", "L7")
def test_all_of_it_through_a_pooler_in_transaction_mode(make_world: Callable[..., World], tmp_path: Path) -> None:
    world = make_world(lease=3.0)
    with pgbouncer(world.url, tmp_path) as pooled:
        direct = world.environment["DATABASE_DIRECT_URL"] = world.url
        world.application_url = pooled
        for name in ("a", "b"):
            world.member(name)
        world.cluster("cluster-0", COUNT_NODE="a")
        until(lambda: len(counted(direct)) > 2, f"nothing ran: {world.log('cluster-0')[-2000:]}")
        world.kill(world.leader())
        before = len(counted(direct))
        until(lambda: len(counted(direct)) > before + 3, "no successor")
        world.end()
    assert logins(tmp_path) > 3, "the members and the cluster did not come through the pooler"
    due = [row[0] for row in counted(direct)]
    assert len(set(due)) == len(due)
    assert overlaps(beliefs(world.lines())) == []
