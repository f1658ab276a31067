"""What is done to the fleet while it works: web processes restarted in turn, agents killed, runs cancelled."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from django.db import connections

from admission.models import Run
from admission.services.runs import cancel_runs
from controlplane.core.audit import SYSTEM
from tests.chaos.processes import Agent, Web
from tests.chaos.world import BOOT_SECONDS, World
from tests.fencing.world import until

TICK_SECONDS = 0.05
END_SECONDS = 60.0
ONE_IN_KILLED, ONE_IN_LONG_DEAD = 3, 4
"""Every third web process is killed, the others end as asked; every fourth agent stays dead past its lease."""


@dataclass
class Faults:
    """Done so far."""

    world: World
    restarts: int = 0
    web_kills: int = 0
    agent_kills: int = 0
    long_dead: int = 0
    cancels: int = 0
    dice: random.Random = field(default_factory=random.Random)
    over: threading.Event = field(default_factory=threading.Event)
    done: list[Future[None]] = field(default_factory=list)
    _dead: dict[str, tuple[float, Agent]] = field(default_factory=dict)

    def raise_failures(self) -> None:
        """Nothing, while all goes on."""
        for one in self.done:
            if one.done():
                one.result()

    def webs(self) -> None:
        """One after the other: the next goes only when the one before is back, as a rolling restart does it."""
        while not self.over.wait(self.world.plan.web_every):
            self._restart(self.world.webs[self.restarts % len(self.world.webs)])

    def _restart(self, web: Web) -> None:
        self.restarts += 1
        assert web.lives_now, web.text()
        if self.restarts % ONE_IN_KILLED == 0:
            self.web_kills += 1
            web.kill()
        else:
            web.ask_to_end()
            until(lambda: not web.lives_now, web.text, END_SECONDS)
            # Workers that outlive their parent would keep the port.
            web.kill()
        web.start()
        until(web.is_ready, web.text, BOOT_SECONDS)

    def agents(self) -> None:
        """Killed by -9 at random, and started again: mostly at once, sometimes only after their lease has lapsed."""
        plan = self.world.plan
        next_kill = time.monotonic() + plan.kill_every / 2
        while not self.over.wait(TICK_SECONDS):
            for agent in self.world.agents:
                assert agent.name in self._dead or agent.lives_now, f"{agent.name} ended by itself\n{agent.text()}"
            self._bring_back(time.monotonic())
            living = [agent for agent in self.world.agents if agent.name not in self._dead]
            if time.monotonic() >= next_kill and len(living) > 1:
                next_kill = time.monotonic() + plan.kill_every * self.dice.uniform(0.5, 1.5)
                self._kill(self.dice.choice(living))
        self._bring_back(float("inf"))

    def _kill(self, agent: Agent) -> None:
        self.agent_kills += 1
        agent.kill()
        pause = self.dice.uniform(0.1, 1.0)
        if self.agent_kills % ONE_IN_LONG_DEAD == 0:
            self.long_dead += 1
            pause = 1.5 * self.world.plan.lease
        self._dead[agent.name] = (time.monotonic() + pause, agent)

    def _bring_back(self, now: float) -> None:
        for name, (due, agent) in list(self._dead.items()):
            if now >= due:
                agent.start()
                del self._dead[name]

    def cancelling(self) -> None:
        """Some runs are cancelled while they are executed, whatever happens to their driver meanwhile."""
        try:
            while self.cancels < self.world.plan.cancels and not self.over.wait(self.dice.uniform(0.2, 0.8)):
                running = Run.objects.filter(state="running", cancel_requested_at=None)
                for run in running.order_by("?").values_list("pk", flat=True)[:1]:
                    self.cancels += len(cancel_runs([run], actor=SYSTEM, reason="chaos"))
        finally:
            connections.close_all()


@contextmanager
def raging(world: World) -> Iterator[Faults]:
    """Until the block ends; what went wrong in a fault is raised by `raise_failures`, and here."""
    faults = Faults(world)
    deeds: list[Callable[[], None]] = [faults.webs, faults.agents, faults.cancelling]
    with ThreadPoolExecutor(len(deeds)) as pool:
        faults.done = [pool.submit(deed) for deed in deeds]
        try:
            yield faults
        finally:
            faults.over.set()
    faults.raise_failures()
