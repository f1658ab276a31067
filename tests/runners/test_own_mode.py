"""A machine takes back what it asked for itself, and nothing else."""

from __future__ import annotations

import pytest

from controlplane.core.audit import Actor
from controlplane.core.errors import Conflict
from runners.models import Runner
from runners.services.fleet import RunnerIdentity, drain_runner, find_runner, pause_runner
from runners.services.own_mode import wish
from tests.runners.conftest import make_runner

pytestmark = [pytest.mark.django_db, pytest.mark.rule("Q11")]
ANNA = Actor("anna")


def machine() -> RunnerIdentity:
    found = find_runner(make_runner().token)
    assert found is not None
    return found


def stands(pk: int) -> tuple[bool, bool]:
    row = Runner.objects.get(pk=pk)
    return row.paused_at is not None, row.draining_at is not None


def test_its_own_pause_is_taken_back_and_the_operators_drain_stays() -> None:
    runner = machine()
    drain_runner(runner.id, actor=ANNA, reason="the rack is moved")
    assert wish(runner, "pause", reason="updates")
    assert stands(runner.id) == (True, True)
    assert wish(runner, "resume", reason="updated")
    assert stands(runner.id) == (False, True), "the drain is anna's"
    with pytest.raises(Conflict, match="anna asked for the drain, with the reason: the rack is moved"):
        wish(runner, "resume", reason="again")
    assert stands(runner.id) == (False, True)


def test_a_pause_that_an_operator_asks_for_too_is_the_operators() -> None:
    runner = machine()
    assert wish(runner, "pause", reason="updates")
    assert pause_runner(runner.id, actor=ANNA, reason="it is broken")
    with pytest.raises(Conflict, match="anna asked for the pause"):
        wish(runner, "resume", reason="updated")
    assert stands(runner.id) == (True, False)


def test_a_resume_of_nothing_is_no_error() -> None:
    runner = machine()
    assert not wish(runner, "resume", reason="nothing")
