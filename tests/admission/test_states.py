"""What the database itself refuses."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from admission.models import Run
from admission.states import HOLDING, TRANSITIONS, RunState
from tests import ledger

pytestmark = pytest.mark.django_db

PAIRS = [(old, new) for old, new in product(RunState, RunState) if old != new]
DRIVEN = {"driver_kind": "replica", "driver_id": 1, "attempt": 1}


def put_into(run: int, state: RunState) -> None:
    """Reach a state by a legal path."""
    path = {
        RunState.QUEUED: [],
        RunState.ADMITTED: [RunState.ADMITTED],
        RunState.RUNNING: [RunState.ADMITTED, RunState.RUNNING],
    }.get(state, [RunState.ADMITTED, RunState.RUNNING, state])
    for step in path:
        Run.objects.filter(pk=run).update(state=step, **DRIVEN)


@pytest.mark.rule("A8", "G6")
@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_the_database_allows_exactly_the_transitions_of_the_table(
    make_tenant: Any, submit: Any, old: RunState, new: RunState
) -> None:
    [run] = submit(make_tenant())
    put_into(run, old)
    if new in TRANSITIONS[old]:
        Run.objects.filter(pk=run).update(state=new, **DRIVEN)
        assert ledger.state(run) == new
        return
    with pytest.raises(IntegrityError, match=f"a {old} run cannot become {new}"), transaction.atomic():
        Run.objects.filter(pk=run).update(state=new, **DRIVEN)
    assert ledger.state(run) == old


@pytest.mark.rule("A8", "G6")
def test_an_unknown_state_is_refused(make_tenant: Any, submit: Any) -> None:
    [run] = submit(make_tenant())
    with pytest.raises(IntegrityError), transaction.atomic():
        Run.objects.filter(pk=run).update(state="paused")


@pytest.mark.rule("R1", "A4")
@pytest.mark.parametrize("state", HOLDING)
@pytest.mark.parametrize("missing", [{"driver_kind": ""}, {"driver_id": None}, {"attempt": 0}])
def test_a_run_that_is_held_names_its_driver(
    make_tenant: Any, submit: Any, state: RunState, missing: dict[str, Any]
) -> None:
    [run] = submit(make_tenant())
    put_into(run, state)
    with pytest.raises(IntegrityError, match="run_holding_has_driver"), transaction.atomic():
        Run.objects.filter(pk=run).update(**missing)


@pytest.mark.rule("R8")
def test_an_epoch_never_falls(make_tenant: Any, submit: Any) -> None:
    [run] = submit(make_tenant())
    Run.objects.filter(pk=run).update(epoch=5)
    Run.objects.filter(pk=run).update(epoch=5)
    with pytest.raises(IntegrityError, match="epoch 5 cannot fall to 4"), transaction.atomic():
        Run.objects.filter(pk=run).update(epoch=4)


@pytest.mark.rule("A8")
def test_the_states_of_the_trigger_are_those_of_the_model() -> None:
    assert set(TRANSITIONS) == set(RunState)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgname = 'run_transition'")
        [definition] = cursor.fetchone()
    for state in RunState:
        assert f"'{state}'" in definition
