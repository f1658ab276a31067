"""A claimed run must be started in time, and an image pull that is reported moves that time on (rule Q5)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F
from django.db.models.functions import Now

from admission.models import Run
from admission.services.runs import cancel_runs
from admission.services.sweeps import pass_start_deadlines
from controlplane.core.audit import SYSTEM
from controlplane.core.conf import conf
from runners.agent.assignment import Capacity, Verdict
from runners.agent.control import Control
from tests import ledger
from tests.api.conftest import Caller
from tests.runners.conftest import RunnerCaller, make_runner, named
from tests.runners.test_controls import control, over_rest, over_sql, tenant_row

__all__ = ["control", "over_rest", "over_sql", "tenant_row"]

pytestmark = [pytest.mark.django_db, pytest.mark.rule("Q5")]


@pytest.fixture
def given(runner: RunnerCaller, tenant: Caller) -> dict[str, Any]:
    """One run, admitted to the runner."""
    ledger.submit(tenant.tenant)
    return runner.claimed()[0]


def pulling(runner: RunnerCaller, given: dict[str, Any]) -> str:
    answer = runner.post("/runner/heartbeats", {"runs": [], "pulling": [named(given)]})
    return str(answer.json()["verdicts"][0]["verdict"])


def admitted(given: dict[str, Any], seconds_ago: float, deadline_in: float) -> None:
    moved = {"admitted_at": Now() - timedelta(seconds=seconds_ago)}
    Run.objects.filter(pk=given["run"]).update(**moved, start_deadline=Now() + timedelta(seconds=deadline_in))


def left(given: dict[str, Any]) -> float:
    found = Run.objects.annotate(left=F("start_deadline") - Now()).get(pk=given["run"]).left
    return float(found.total_seconds())


def test_a_reported_pull_moves_the_start_deadline_and_the_lease(runner: RunnerCaller, given: dict[str, Any]) -> None:
    admitted(given, 100, deadline_in=1)
    Run.objects.update(lease_until=Now())
    assert pulling(runner, given) == "ok"
    assert conf().start_deadline_seconds - 5 < left(given) <= conf().start_deadline_seconds
    assert ledger.run(given["run"]).lease_until > ledger.run(given["run"]).start_deadline
    assert pass_start_deadlines().counts == {"start_deadline": 0}
    assert ledger.state(given["run"]) == "admitted"


def test_fifteen_minutes_after_the_admission_it_is_over(runner: RunnerCaller, given: dict[str, Any]) -> None:
    assert conf().pull_seconds == 900
    admitted(given, 880, deadline_in=1)
    pulling(runner, given)
    assert 15 < left(given) <= 20
    admitted(given, 901, deadline_in=-1)
    assert pulling(runner, given) == "ok", "it is still its own; its time is not extended"
    assert left(given) < 0
    assert pass_start_deadlines().counts == {"start_deadline": 1}
    row = ledger.run(given["run"])
    assert (row.state, row.tries, row.unstarted) == ("queued", 0, 1)
    assert pulling(runner, given) == "superseded"


def test_a_report_never_shortens(runner: RunnerCaller, given: dict[str, Any]) -> None:
    admitted(given, 0, deadline_in=3000)
    pulling(runner, given)
    assert left(given) > 2900


def test_it_costs_no_time_of_the_run(runner: RunnerCaller, given: dict[str, Any]) -> None:
    admitted(given, 500, deadline_in=10)
    pulling(runner, given)
    assert ledger.run(given["run"]).run_deadline is None
    runner.job(given, "start")
    row = ledger.run(given["run"])
    assert row.run_deadline is not None
    assert row.started_at is not None
    assert (row.run_deadline - row.started_at).total_seconds() >= row.timeout_seconds
    deadline = row.start_deadline
    assert pulling(runner, given) == "ok"
    assert ledger.run(given["run"]).start_deadline == deadline, "started: there is nothing to move"


def test_anothers_and_a_stale_report_move_nothing(runner: RunnerCaller, given: dict[str, Any]) -> None:
    admitted(given, 0, deadline_in=1)
    assert pulling(make_runner(), given) == "superseded"
    assert pulling(runner, {**given, "epoch": given["epoch"] + 1}) == "superseded"
    assert left(given) < 2


def test_a_cancel_is_heard_while_pulling(runner: RunnerCaller, given: dict[str, Any]) -> None:
    cancel_runs([given["run"]], actor=SYSTEM)
    assert pulling(runner, given) == "cancel"


def test_both_control_planes_take_the_report(control: Control, tenant_row: Any) -> None:
    ledger.submit(tenant_row)
    key = control.claim("r", Capacity(1))[0].key
    Run.objects.update(start_deadline=Now() + timedelta(seconds=1))
    assert control.pulling([key]) == {key: Verdict.OK}
    assert left({"run": key.run}) > 30
