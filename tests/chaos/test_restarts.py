"""Runners through restarts: two web processes behind HAProxy, PostgreSQL behind PgBouncer, agents killed by -9."""

from __future__ import annotations

import json
import os
import time
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import pytest

from tests.chaos import judging
from tests.chaos.balancer import Balancer
from tests.chaos.faults import Faults, raging
from tests.chaos.plan import FULL_LENGTH, SMALL, Plan
from tests.chaos.watching import Seen, docker_starts, watched
from tests.chaos.world import BOOT_SECONDS, World, brought_up
from tests.fencing.conftest import local_image
from tests.fencing.world import until

__all__ = ["local_image"]

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.xdist_group("chaos")]


def live_through(world: World, balancer: Balancer) -> dict[str, Any]:
    """All of the runs, under all of the faults; then the agents are told to end. What was seen."""
    began = time.monotonic()
    with watched(world.server.url, world.plan.look_every) as seen:
        with raging(world) as faults:
            world.submit()
            until_ended(world, faults)
        took = time.monotonic() - began
        for agent in world.agents:
            until(agent.is_connected, agent.text, BOOT_SECONDS)
            agent.ask_to_end()
        for agent in world.agents:
            assert agent.process is not None
            assert agent.process.wait(60) == 0, agent.text()
    return {
        "seconds": round(took, 1),
        "load": round(os.getloadavg()[0], 1),
        **told(seen, faults),
        **balancer.figures(),
    }


def until_ended(world: World, faults: Faults) -> None:
    def ended() -> bool:
        faults.raise_failures()
        return not judging.open_runs()

    until(ended, lambda: f"not ended: {judging.unfinished(world)}", world.plan.patience)


def told(seen: Seen, faults: Faults) -> dict[str, Any]:
    kept = ("restarts", "web_kills", "agent_kills", "long_dead", "cancels")
    return {**asdict(seen), **{name: getattr(faults, name) for name in kept}}


def judge(world: World, seen: dict[str, Any]) -> dict[str, Any]:
    """Everything that must hold, and the figures."""
    started = judging.executions(world)
    found = {
        **seen,
        **judging.assert_each_ended_exactly_once(world),
        "executions": len(started),
        "claims": judging.assert_nothing_was_offered_twice(world),
        "peaks": judging.assert_quotas_held(world),
        "log_bytes": judging.assert_no_byte_is_missing(world),
        **judging.figures(world),
    }
    judging.assert_nothing_was_executed_twice(world, started)
    judging.assert_nothing_is_left(world)
    return found


def withstand(plan: Plan, image: str = "") -> None:
    began = time.monotonic()
    with ExitStack() as stack:
        world, balancer = stack.enter_context(brought_up(plan, image))
        booted = round(time.monotonic() - began, 1)
        if plan.on_docker:
            stack.enter_context(docker_starts(world.identity(world.agents[-1]), world.folder / "docker-events"))
        seen = live_through(world, balancer)
        found = {"booted": booted, **judge(world, seen), "whole": round(time.monotonic() - began, 1)}
        print(json.dumps(found))  # the figures of the run
    assert (found["above"], found["drifted"], found["stray"]) == (0, 0, 0)
    assert found["looks"] > found["seconds"]
    assert min(found["restarts"], found["agent_kills"], found["most_held"]) > 0


@pytest.mark.timeout(400)
@pytest.mark.rule("Q1", "Q6", "Q8", "Q9", "Q12", "A5", "A30", "G9")
def test_every_run_ends_once_while_web_processes_restart_and_agents_are_killed() -> None:
    withstand(SMALL)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.rule("Q1", "Q6", "Q8", "Q9", "Q12", "A5", "A30", "G9")
def test_five_thousand_runs_on_six_agents_and_docker_end_once_through_restarts_and_kills(local_image: str) -> None:
    withstand(FULL_LENGTH, local_image)
