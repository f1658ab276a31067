"""While nobody can be called, silence says nothing about a runner (rule Q6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from admission.models import Permit, Run, Tenant
from admission.services.reaping import reap_run_permits
from admission.services.serving import fail_unserved
from admission.services.sweeps import pass_runner_leases
from controlplane.core import web_sign
from controlplane.core.models import Hold
from tests import ledger

pytestmark = [pytest.mark.django_db, pytest.mark.rule("Q6")]

HELD = {"runner_lease": 0, "held_after_outage": True}
LONG = timedelta(hours=1)


def is_over(name: str = "runner_lease") -> None:
    """A hold taken for the silence that goes on is over, and the pass looked just now."""
    row = Run.objects.filter(lease_until__isnull=False).order_by("-lease_until").first()
    sign = row.lease_until - timedelta(seconds=120) if row is not None and row.lease_until else None
    values = {"sign_at": Now(), "until": Now(), "taken_for": sign if name == "runner_lease" else None}
    Hold.objects.update_or_create(name=name, defaults=values)


def last_web(ago: timedelta, held_until: timedelta = -LONG) -> None:
    values = {"sign_at": Now() - ago, "until": Now() + held_until}
    Hold.objects.update_or_create(name="web", defaults=values)


@pytest.fixture
def silent(make_tenant: Callable[..., Tenant], make_driver: Callable[..., Any], submit: Any) -> Iterator[int]:
    """A run whose runner has been silent past its lease, and past the hold that silence alone gives."""
    (run,) = submit(make_tenant(2))
    runner = make_driver("runner")
    ledger.start(runner, ledger.admit_all(runner))
    Run.objects.filter(pk=run).update(lease_until=Now() - LONG)
    is_over()
    yield run
    ledger.assert_conserved()


def test_without_a_web_process_nothing_is_taken_from_a_runner_however_long(silent: int) -> None:
    last_web(timedelta(days=1))
    ledger.holds_for(3, lambda: pass_runner_leases().counts == HELD, before_each=is_over)
    assert ledger.state(silent) == "running"


def test_when_one_is_back_a_full_lease_is_waited_once(silent: int) -> None:
    last_web(LONG)
    web_sign.show()
    until = Hold.objects.get(name="web").until
    assert Hold.objects.filter(name="web", until__gt=Now() + timedelta(seconds=115)).exists()
    web_sign.show()
    assert Hold.objects.get(name="web").until == until, "the second sign is no other outage"
    assert pass_runner_leases().counts == HELD
    last_web(timedelta(0))
    assert pass_runner_leases().counts == {"runner_lease": 1}
    assert ledger.state(silent) == "queued"


def test_a_silent_runner_beside_a_living_web_process_loses_its_run(silent: int) -> None:
    last_web(timedelta(seconds=59))
    assert pass_runner_leases().counts == {"runner_lease": 1}


def test_where_no_web_process_ever_showed_itself_nobody_waits_for_one(silent: int) -> None:
    assert not Hold.objects.filter(name="web").exists()
    assert pass_runner_leases().counts == {"runner_lease": 1}


def test_the_very_first_sign_follows_no_outage(silent: int) -> None:
    web_sign.show()
    assert pass_runner_leases().counts == {"runner_lease": 1}


def test_the_permits_of_runners_are_not_reaped_meanwhile_those_of_replicas_are(
    silent: int, make_driver: Callable[..., Any], submit: Any
) -> None:
    replica = make_driver()
    (other,) = submit(Tenant.objects.get())
    ledger.start(replica, ledger.admit_all(replica))
    Permit.objects.update(renewed_at=Now() - LONG)
    is_over("permit_reap")
    last_web(LONG)
    assert reap_run_permits().counts == {"runs": 1}
    assert (ledger.state(silent), ledger.state(other)) == ("running", "queued")
    last_web(timedelta(0))
    assert reap_run_permits().counts == {"runs": 1}
    assert ledger.state(silent) == "queued"


@pytest.mark.rule("Q10")
def test_nothing_fails_for_want_of_a_runner_meanwhile(make_tenant: Callable[..., Tenant], submit: Any) -> None:
    (run,) = submit(make_tenant(), on_no_runner="fail")
    Run.objects.filter(pk=run).update(created_at=Now() - LONG)
    last_web(LONG)
    ledger.holds_for(3, lambda: fail_unserved().counts == {"no_runner": 0}, lambda: is_over("no_runner"))
    assert ledger.state(run) == "queued"
    last_web(timedelta(0))
    assert fail_unserved().counts == {"no_runner": 1}
