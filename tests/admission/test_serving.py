"""Runs that nobody can take: said at submit, and ended if they asked for that (rule Q10)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from admission.models import Run
from admission.services.serving import drivers_lately, fail_unserved
from controlplane.core.audit import SYSTEM
from controlplane.core.conf import conf
from controlplane.core.models import Hold
from recovery.models import Replica
from runners.models import Runner
from runners.services.fleet import pause_runner, revoke_runner
from tests import ledger
from tests.api.conftest import Caller, tenant_caller
from tests.runners.conftest import RunnerCaller, make_runner

pytestmark = [pytest.mark.django_db, pytest.mark.rule("Q10")]

FAIL = {"on_no_runner": "fail"}


@pytest.fixture
def tenant(db: None) -> Caller:
    return tenant_caller()


@pytest.fixture(autouse=True)
def _read_anew() -> Iterator[None]:
    drivers_lately.forget()
    yield
    drivers_lately.forget()


def silence(runner: RunnerCaller, seconds: float) -> None:
    Runner.objects.filter(pk=runner.runner).update(contact_at=Now() - timedelta(seconds=seconds))


def waited(run: int, seconds: float = 301) -> None:
    Run.objects.filter(pk=run).update(created_at=Now() - timedelta(seconds=seconds))


def swept() -> int:
    """A pass that does not come after an outage."""
    first = fail_unserved().counts["no_runner"]
    Hold.objects.update(until=Now())
    return int(first + fail_unserved().counts["no_runner"])


def warned(tenant: Caller, **spec: Any) -> list[str]:
    drivers_lately.forget()
    answer = tenant.post("/runs", {"command": ["true"], **spec})
    assert answer.status_code == 201
    return list(answer.json()["warnings"])


def test_at_submit_it_is_said_that_nobody_enrolled_could_ever_take_it(tenant: Caller) -> None:
    assert "Nothing is enrolled" in warned(tenant)[0]
    make_runner(labels={"gpu": "a100"})
    assert warned(tenant) == []
    assert "none of 1 has the labels gpu=h100" in warned(tenant, labels={"gpu": "h100"})[0]
    assert "offers the backend process" in warned(tenant, backend="process")[0]
    ledger.make_replica(memory_mib=1000, cpu=2)
    assert (
        "is as large as 2000 MiB"
        in warned(tenant, backend="docker", labels={"x": "y"}, resources={"memory_mib": 2000})[0]
        or "has the labels" in warned(tenant, labels={"x": "y"})[0]
    )


def test_a_busy_a_paused_and_a_silent_runner_are_no_reason_to_warn_but_a_revoked_one_is(tenant: Caller) -> None:
    runner = make_runner(slots=1)
    ledger.submit(tenant.tenant, 2)
    runner.claimed()
    assert warned(tenant) == []
    pause_runner(runner.runner, actor=SYSTEM, reason="x")
    silence(runner, 10_000)
    assert warned(tenant) == []
    revoke_runner(runner.runner, actor=SYSTEM, reason="x")
    assert warned(tenant) != []


def test_a_runner_of_another_tenant_is_none(tenant: Caller) -> None:
    make_runner(tenant=ledger.make_tenant())
    assert "serves this tenant" in warned(tenant)[0]


def test_a_batch_says_it_of_each_run(tenant: Caller) -> None:
    make_runner()
    drivers_lately.forget()
    runs = [{"spec": {"command": ["true"]}}, {"spec": {"command": ["true"], "labels": {"a": "b"}}}]
    items = tenant.post("/batches", {"name": "b", "runs": runs}).json()["items"]
    assert [len(item["warnings"]) for item in items] == [0, 1]


def test_without_a_living_capable_driver_it_fails_only_if_it_asked_for_that(make_tenant: Any) -> None:
    made = make_tenant(quota=5)
    asked, waits = ledger.submit(made, **FAIL)[0], ledger.submit(made)[0]
    waited(asked)
    waited(waits)
    assert swept() == 1
    row = ledger.run(asked)
    assert (row.state, row.reason, row.epoch) == ("failed", "no_runner", 1)
    assert "300 s" in row.detail
    assert ledger.state(waits) == "queued"
    ledger.assert_conserved()


def test_it_waits_its_time_first(make_tenant: Any) -> None:
    run = ledger.submit(make_tenant(), **FAIL)[0]
    waited(run, conf().no_runner_seconds - 5)
    assert swept() == 0
    waited(run, conf().no_runner_seconds + 1)
    assert swept() == 1


def test_a_busy_serial_runner_keeps_its_backlog_alive(make_tenant: Any) -> None:
    made = make_tenant()
    runner = make_runner(slots=1)
    runs = ledger.submit(made, 3, **FAIL)
    runner.claimed()
    silence(runner, 20)
    for run in runs:
        waited(run, 100_000)
    assert swept() == 0
    silence(runner, 301)
    assert swept() == 2
    assert sorted(ledger.state(run) for run in runs) == ["admitted", "failed", "failed"]


@pytest.mark.parametrize(
    "lacks", [{"labels": {"gpu": "h100"}}, {"backend": "process"}, {"resources": {"memory_mib": 5000}}]
)
def test_a_living_driver_that_could_not_take_it_is_none(make_tenant: Any, lacks: dict[str, Any]) -> None:
    ledger.make_replica(memory_mib=1000, cpu=8)
    run = ledger.submit(make_tenant(), **FAIL, **lacks)[0]
    waited(run)
    assert swept() == 1


def test_a_living_one_that_could_keeps_it(make_tenant: Any) -> None:
    ledger.make_replica(memory_mib=1000, cpu=8)
    run = ledger.submit(make_tenant(), **FAIL)[0]
    waited(run)
    assert swept() == 0
    Replica.objects.update(declared_dead_at=Now())
    assert swept() == 1


def test_one_that_never_called_is_not_living(make_tenant: Any) -> None:
    make_runner()
    waited(ledger.submit(make_tenant(), **FAIL)[0])
    assert swept() == 1


def test_after_an_outage_everybody_gets_his_time_to_come_back(make_tenant: Any) -> None:
    waited(ledger.submit(make_tenant(), **FAIL)[0])
    ledger.holds_for(3, lambda: fail_unserved().counts == {"no_runner": 0})
    Hold.objects.update(until=Now())
    assert fail_unserved().counts["no_runner"] == 1


def test_given_back_it_waits_anew(make_tenant: Any) -> None:
    run = ledger.submit(make_tenant(), **FAIL)[0]
    runner = make_runner()
    given = runner.claimed()[0]
    runner.post("/runner/results", {"results": [{"run": run, "epoch": given["epoch"], "ending": "returned"}]})
    waited(run)
    silence(runner, 301)
    assert swept() == 0
