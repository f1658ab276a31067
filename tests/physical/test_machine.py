"""Any order of the scripts, by processes of three generations: the answers are the model's, and S1 to S6 hold.

The callers here are the protocol's: they start only what was registered, remove before they free, free what they
confirmed. Repeats and late calls are every rule again, with tokens that were used before.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from admission.physical.protocol import PhysicalSlots, new_token
from admission.physical.results import Freed
from tests.physical.model import Model
from tests.physical.server import OwnRedis
from tests.physical.world import World, container_id

LIMITS = {0: 2, 1: 3, 2: 1}
OWNERS = ("a", "b")

generations = st.sampled_from(sorted(LIMITS))
owners = st.sampled_from(OWNERS)
picks = st.integers(0, 5)


class Slots(RuleBasedStateMachine):
    server: OwnRedis

    @initialize()
    def begin(self) -> None:
        self.place = tempfile.TemporaryDirectory()
        self.world = World(self.server, Path(self.place.name), limit=LIMITS[0])
        self.processes: dict[int, PhysicalSlots] = {
            generation: self.world.process(limit=limit, generation=generation) for generation, limit in LIMITS.items()
        }
        for process in self.processes.values():
            process.ensure_verified()
        self.model = Model(limit=LIMITS[0], generation=0)
        self.tokens = [new_token() for _ in range(6)]
        self.startable: dict[str, tuple[str, int]] = {}  # what was registered and exists: container, generation
        self.registered: set[str] = set()
        self.freed: set[str] = set()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.close()
            self.place.cleanup()

    def any_process(self) -> PhysicalSlots:
        return self.processes[self.model.generation]

    @rule(pick=picks, owner=owners, generation=generations)
    def acquire(self, pick: int, owner: str, generation: int) -> None:
        token = self.tokens[pick]
        answer = self.processes[generation].acquire(token, owner)
        assert (answer.outcome, answer.reason) == self.model.acquire(token, owner, generation, LIMITS[generation])
        assert token not in self.freed or not answer.ok, "tokens are used once here"

    @rule(pick=picks, owner=owners)
    def create_and_register(self, pick: int, owner: str) -> None:
        token = self.tokens[pick]
        container = self.world.shelf.containers.setdefault(token, container_id())
        answer = self.any_process().register(token, owner, container)
        assert answer.reason == self.model.register(token, owner, container)
        if answer.ok:
            assert token not in self.freed
            self.registered.add(container)
            self.startable[token] = (container, self.model.holders[token].generation)
        elif token not in self.startable:
            del self.world.shelf.containers[token]

    @rule(pick=picks, owner=owners)
    def register_another(self, pick: int, owner: str) -> None:
        token, container = self.tokens[pick], container_id()
        if token in self.model.holders and self.model.holders[token].container is None:
            return
        answer = self.any_process().register(token, owner, container)
        assert answer.reason == self.model.register(token, owner, container)
        assert not answer.ok

    @rule(pick=picks, owner=owners)
    def renew(self, pick: int, owner: str) -> None:
        token = self.tokens[pick]
        assert self.any_process().renew(token, owner).outcome is self.model.renew(token, owner)

    @rule(pick=picks, old=owners, new=owners)
    def adopt(self, pick: int, old: str, new: str) -> None:
        token = self.tokens[pick]
        assert self.any_process().adopt(token, old, new).reason == self.model.adopt(token, old, new)

    @rule(pick=picks)
    def time_passes(self, pick: int) -> None:
        token = self.tokens[pick]
        if token in self.model.holders:
            self.world.expire(token)
            self.model.holders[token].expired = True

    @rule(generation=generations)
    def install(self, generation: int) -> None:
        answer = self.processes[generation].install()
        assert answer.outcome is self.model.install(generation, LIMITS[generation])

    def _remove(self, token: str) -> None:
        self.world.shelf.containers.pop(token, None)
        self.startable.pop(token, None)

    def _free(self, process: PhysicalSlots, token: str, container: str | None) -> None:
        answer = process.free(token, container)
        assert answer.outcome is self.model.free(token, container)
        if answer.outcome is Freed.FREED:
            self.freed.add(token)
            self.tokens[self.tokens.index(token)] = new_token()

    @rule(generation=generations, finishes=st.booleans())
    def recover(self, generation: int, finishes: bool) -> None:
        process = self.processes[generation]
        answer = process.fence_expired()
        expected = self.model.fence_expired(generation)
        assert (answer.reason is not None) == (expected is None)
        assert {(h.token, h.container_id) for h in answer.holders} == (expected or set())
        for holder in answer.holders if finishes else ():
            self._remove(holder.token)
            self._free(process, holder.token, holder.container_id)

    @rule(pick=picks, owner=owners, finishes=st.booleans())
    def release(self, pick: int, owner: str, finishes: bool) -> None:
        process, token = self.any_process(), self.tokens[pick]
        answer = process.fence_own(token, owner)
        assert (answer.outcome, answer.container_id) == self.model.fence_own(token, owner)
        if answer.outcome == "fenced" and finishes:
            self._remove(token)
            self._free(process, token, answer.container_id)

    @rule(pick=picks, knows=st.booleans())
    def stale_free(self, pick: int, knows: bool) -> None:
        """A free of somebody who confirmed something else: another id, or none."""
        token = self.tokens[pick]
        recorded = self.model.holders[token].container if token in self.model.holders else None
        confirmed = container_id() if recorded is None or knows else None
        assert self.any_process().free(token, confirmed).outcome is self.model.free(token, confirmed)

    @precondition(lambda self: not self.model.lockdown)
    @rule()
    def lock_down(self) -> None:
        assert self.any_process().set_lockdown("found one")
        self.model.lockdown = True

    @precondition(lambda self: self.model.lockdown)
    @rule()
    def unlock(self) -> None:
        process = self.any_process()
        assert process.clear_lockdown(process.begin_pass())
        self.model.lockdown = False

    @rule(generation=generations)
    def connections_break(self, generation: int) -> None:
        self.processes[generation].close()

    @invariant()
    def what_is_stored_is_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        snapshot = self.any_process().read()
        assert snapshot.config is not None
        assert (snapshot.config.generation, snapshot.config.limit) == (self.model.generation, self.model.limit)
        stored = {h.token: (h.state.value, h.generation, h.owner, h.container_id) for h in snapshot.holders}
        assert stored == {t: (e.state, e.generation, e.owner, e.container) for t, e in self.model.holders.items()}

    @invariant()
    def s1_to_s6(self) -> None:
        if not hasattr(self, "model"):
            return
        held = self.model.holders
        current = sum(e.generation == self.model.generation for e in held.values())
        assert current <= self.model.limit, "S5"
        assert not current or current == len(held), "S5: nothing new beside what an older generation holds"
        of = {generation for _, generation in self.startable.values()}
        assert len(of) <= 1, "S1: one generation runs"
        assert len(self.startable) <= max(LIMITS[g] for g in of or {0}), "S1"
        assert set(self.startable) <= set(held), "S2: what was freed has no registered container"
        recorded = {e.container for e in held.values() if e.container}
        assert {c for c, _ in self.startable.values()} <= recorded, "S4: only what is recorded can start"
        assert len(recorded) == sum(e.container is not None for e in held.values()), "S6"


@pytest.mark.rule("P1")
@pytest.mark.rule("P6")
@pytest.mark.rule("P8")
@pytest.mark.rule("P11")
def test_any_order_of_scripts(server: OwnRedis) -> None:
    _run(server, examples=25)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.rule("P1")
@pytest.mark.rule("P6")
@pytest.mark.rule("P8")
@pytest.mark.rule("P11")
def test_any_order_of_scripts_at_length(server: OwnRedis) -> None:
    _run(server, examples=1500)


def _run(server: OwnRedis, examples: int) -> None:
    machine: Any = type("SlotsOn", (Slots,), {"server": server})
    options = settings(
        max_examples=examples,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=False,
    )
    run_state_machine_as_test(machine, settings=options)
