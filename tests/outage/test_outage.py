"""The server, or its database, is away for ten minutes: results and logs come afterwards, whole (rules Q6, Q12).

Everything is real: the web process as deployed behind HAProxy, PostgreSQL behind PgBouncer, the sweeps, three agents.
What runs when the server goes ends without it. Two agents are killed by -9 meanwhile and started again: what they had
reached is on their disks; what one of them still executed is given back, and is the only run with a second attempt.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connections
from django.db.models.functions import Now

from admission.models import Run
from runners.services.kept import read_kept
from tests import ledger
from tests.chaos import judging
from tests.chaos.plan import Plan
from tests.chaos.processes import Agent
from tests.chaos.watching import docker_starts
from tests.chaos.world import BOOT_SECONDS, World, brought_up
from tests.fencing.conftest import local_image
from tests.fencing.world import until
from tests.outage.errands import AFTER, DURING, Errand, errands

__all__ = ["local_image"]

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.xdist_group("chaos"),
    pytest.mark.rule("Q6", "Q8", "Q12", "A5", "A30"),
]


@dataclass(frozen=True, slots=True)
class Outage(Plan):
    """How long nobody answers. A short one is made to look long: what it would have made old is made old by hand."""

    away: float = 0.0
    aged: bool = False


def outage(scale: float, away: float, patience: float, *, docker: bool, aged: bool) -> Outage:
    faults = {"web_every": 0, "kill_every": 0, "cancels": 0, "look_every": 0}
    fleet = {"agents": 2, "slots": 4, "webs": 1, "web_workers": 1, "on_docker": int(docker)}
    quotas = (5 if docker else 4, 4)
    return Outage(scale, quotas, runs=0, seconds=(0, 0), patience=patience, away=away, aged=aged, **fleet, **faults)


# The leases lapsed, the hold that their silence alone gives was taken and is over, the last web process is long gone.
AGE = (
    """
    UPDATE admission_run SET lease_until = lease_until - interval '1 hour' WHERE lease_until IS NOT NULL
    """,
    """
    INSERT INTO core_hold (name, sign_at, taken_for, until)
    SELECT 'runner_lease', at, at, statement_timestamp() FROM (
        SELECT max(lease_until) - make_interval(secs => %(lease)s) AS at FROM admission_run) last
    ON CONFLICT (name) DO UPDATE
    SET sign_at = excluded.sign_at, taken_for = excluded.taken_for, until = excluded.until
    """,
    "UPDATE core_hold SET sign_at = sign_at - interval '1 hour', until = statement_timestamp() WHERE name = 'web'",
)


def make_old(world: World) -> None:
    with psycopg.connect(world.server.url) as session:
        for statement in AGE:
            session.execute(statement.encode(), {"lease": world.plan.lease})


@contextmanager
def server_away(world: World) -> Iterator[None]:
    """The sweeps go on; the agents' leases lapse, and HAProxy answers 503."""
    (web,) = world.webs
    web.ask_to_end()
    until(lambda: not web.lives_now, web.text)
    web.kill()
    if world.plan.aged:
        make_old(world)
    yield
    web.start()
    until(web.is_ready, web.text, BOOT_SECONDS)


@contextmanager
def database_away(world: World) -> Iterator[None]:
    """The web process, the replica and the queue stay, without anything to say."""
    connections.close_all()
    world.server.stop()
    try:
        yield
    finally:
        world.server.come_back()
    for one in (*world.webs, *world.others):
        assert one.lives_now, one.text()
    until(world.webs[0].is_ready, world.webs[0].text, BOOT_SECONDS)


AWAY = {"server": server_away, "database": database_away}


def spooled(agent: Agent) -> int:
    """Ends that wait on its disk."""
    found = Path(agent.env["WHARFINGER_RUNNER_STATE"]).parent.rglob("*.hold")
    return sum(json.loads(path.read_bytes().partition(b"\n")[0])["result"] is not None for path in found)


def knock(world: World) -> None:
    """Opens the gates in containers that listen: what they print first says that they do."""
    for container in world.containers():
        if docker("logs", container).stdout:
            docker("kill", "--signal", "USR1", container)  # it may have ended by now


def docker(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["docker", *words], check=False, capture_output=True)


def have_ended(world: World, agent: Agent) -> bool:
    """All that it was to bring to an end during the outage waits on its disk."""
    knock(world)
    own = [work for work in world.works.values() if isinstance(work, Errand) and work.agent == agent.name]
    return spooled(agent) == sum(AFTER not in work.gates for work in own)


def live_through(world: World, what: str, running: list[Errand], waiting: list[Errand]) -> dict[str, Any]:
    plan = world.plan
    assert isinstance(plan, Outage)
    world.make_tenants()
    world.put(running)
    begun = list(world.works)
    until(lambda: Run.objects.filter(pk__in=begun, state="running").count() == len(begun), world.agents[0].text)
    world.put(waiting)
    with AWAY[what](world):
        left = time.monotonic()
        (world.folder / DURING).touch()
        for agent in world.agents:
            until(lambda agent=agent: have_ended(world, agent), agent.text)
        for agent in world.agents[1:]:
            agent.kill()
            agent.start()
        while time.monotonic() - left < plan.away:
            assert all(agent.lives_now for agent in world.agents)
            assert what == "database" or nobody_took(begun)
            time.sleep(1)
        assert what == "database" or Run.objects.filter(pk__in=begun, lease_until__gt=Now()).count() == 0
    back = time.monotonic()
    (world.folder / AFTER).touch()
    reached = [run for run in begun if AFTER not in world.works[run].gates]
    until(lambda: ended(reached) == len(reached), world.agents[1].text, plan.patience)
    delivered = time.monotonic() - back
    until(lambda: not judging.open_runs(), lambda: f"not ended: {judging.unfinished(world)}", plan.patience)
    return {"away": round(back - left, 1), "delivered": round(delivered, 1), "all": round(time.monotonic() - back, 1)}


def nobody_took(runs: list[int]) -> bool:
    return Run.objects.filter(pk__in=runs, state="running", attempt=1).count() == len(runs)


def ended(runs: list[int]) -> int:
    return Run.objects.filter(pk__in=runs, finished_at__isnull=False).count()


def end_agents(world: World) -> None:
    for agent in world.agents:
        agent.ask_to_end()
    for agent in world.agents:
        assert agent.process is not None
        assert agent.process.wait(60) == 0, agent.text()
        assert spooled(agent) == 0


def judge(world: World) -> dict[str, Any]:
    found = {
        **judging.assert_each_ended_exactly_once(world),
        "claims": judging.assert_nothing_was_offered_twice(world),
        "peaks": judging.assert_quotas_held(world),
        "log_bytes": judging.assert_no_byte_is_missing(world),
        **judging.figures(world),
    }
    judging.assert_nothing_was_executed_twice(world, judging.executions(world))
    judging.assert_nothing_is_left(world)
    again = {work.key: attempt for run, work in world.works.items() if (attempt := ledger.run(run).attempt) > 1}
    assert again == {f"{world.mark}.agent1-3": 2}, again  # what was under way on the killed agent, and nothing else
    for run, work in world.works.items():
        text = work.output(ledger.run(run).attempt)[:1000]
        kept = {one.name: bytes(one.sha256) for one in read_kept(run).files}
        assert kept == {"kept": hashlib.sha256(text).digest()}, run
    return found


def outlast(plan: Outage, what: str, image: str = "") -> None:
    with brought_up(plan, image) as (world, _):
        watch = partial(docker_starts, world.identity(world.agents[-1]), world.folder / "docker-events")
        with watch() if image else nullcontext():
            seen = live_through(world, what, *errands(world.mark, docker=bool(image)))
            end_agents(world)
        print(json.dumps({"what": what, **seen, **judge(world)}))  # the figures of the run


@pytest.mark.timeout(300)
def test_ends_reached_while_the_server_was_away_come_afterwards_whole() -> None:
    outlast(outage(0.25, 4.0, 60.0, docker=False, aged=True), "server")


@pytest.mark.soak
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("what", ["server", "database"])
def test_ends_reached_in_ten_minutes_without_server_or_database_come_afterwards_whole(
    local_image: str, what: str
) -> None:
    outlast(outage(1.0, 600.0, 600.0, docker=True, aged=False), what, local_image)
