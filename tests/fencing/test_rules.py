"""What strict fencing refuses: settings without room, and everything that would free a permit earlier."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from admission.engine import Envelope
from admission.models import Run, Tenant
from admission.services.quotas import remove_quota, set_quota
from admission.services.runs import cancel_runs, requeue_runs, start_runs
from controlplane.core import fencing
from controlplane.core.audit import SYSTEM
from controlplane.core.checks import check_settings
from controlplane.core.conf import conf
from controlplane.core.errors import Conflict
from recovery.models import Replica
from recovery.services.deaths import declare_and_claim
from recovery.services.reconcile import reconcile
from recovery.services.replicas import replica_driver
from runners.services.claims import claim_runs
from runners.services.enrolment import Machine, enrol, issue_enrolment_token
from runners.services.fleet import find_runner, refuse_unfenced, revoke_runner, runner_driver
from tests import ledger

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.rule("A16")]


@pytest.fixture
def strict(settings: Any) -> Any:
    settings.CONTROLPLANE = {**settings.CONTROLPLANE, "fence": "strict"}
    return settings


def errors() -> set[str]:
    return {message.id for message in check_settings() if message.id and message.id.startswith("controlplane.E")}


def test_the_default_windows_leave_room(strict: Any) -> None:
    assert errors() == set()
    found = fencing.replica_fence()
    assert found is not None
    assert (found.beat_seconds, found.permit_seconds, fencing.runner_fence_seconds()) == (58, 1768, 88)


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"fence_stop_seconds": 70}, "E021"),
        ({"replica_stale_seconds": 51}, "E021"),
        ({"fence_drift_seconds": 30}, "E022"),
        ({"permit_lapse_seconds": 1200, "permit_renew_seconds": 400, "fence_stop_seconds": 500}, "E023"),
        ({"fence_stop_seconds": 0}, "E020"),
        ({"fence_drift_seconds": -1}, "E020"),
    ],
)
def test_windows_without_room_for_stop_and_drift_are_refused(
    strict: Any, changes: dict[str, float], refused: str
) -> None:
    strict.CONTROLPLANE = {**strict.CONTROLPLANE, **changes}
    assert f"controlplane.{refused}" in errors()
    strict.CONTROLPLANE = {**strict.CONTROLPLANE, "fence": "off"}
    assert not any(number.startswith("controlplane.E02") for number in errors())


def test_an_operator_takes_no_run_from_its_driver(strict: Any, make_tenant: Callable[..., Tenant]) -> None:
    tenant, driver = make_tenant(1), ledger.make_driver()
    ledger.submit(tenant)
    held = ledger.start(driver, ledger.admit_all(driver))
    with pytest.raises(Conflict, match="Cancel it"):
        requeue_runs(held, actor=SYSTEM, reason="a test")
    assert ledger.in_flight(tenant) == 1
    cancel_runs([held[0][0]], actor=SYSTEM)
    assert ledger.in_flight(tenant) == 1, "until its driver confirms"
    strict.CONTROLPLANE = {**strict.CONTROLPLANE, "fence": "off"}
    assert len(requeue_runs(held, actor=SYSTEM, reason="a test")) == 1


@pytest.mark.rule("A14")
def test_a_quota_removed_and_set_again_counts_what_a_silent_driver_may_still_execute(
    strict: Any, make_tenant: Callable[..., Tenant]
) -> None:
    tenant, driver = make_tenant(1), ledger.make_driver()
    ledger.submit(tenant, 2)
    ledger.start(driver, ledger.admit_all(driver))
    remove_quota(tenant, actor=SYSTEM)
    set_quota(tenant, 1, actor=SYSTEM)
    assert ledger.in_flight(tenant) == 1
    assert ledger.admit_all(ledger.make_driver()) == []


def test_a_death_declared_early_frees_nothing_before_the_window_has_passed(
    strict: Any, make_tenant: Callable[..., Tenant]
) -> None:
    """As a new incarnation under the same pinned id declares its predecessor's, or a goodbye with work left."""
    tenant, dead = make_tenant(1), ledger.make_replica()
    driver = replica_driver(dead)
    (run,) = ledger.submit(tenant)
    ledger.start(driver, ledger.admit_all(driver))
    claimant = str(uuid.uuid4())
    dead.refresh_from_db()
    assert declare_and_claim(dead.pk, claimant=claimant, proof="unchanged", seen=dead.beat_at)
    report = reconcile(claimant=claimant, by="a test")
    assert (report.requeued, report.deferred) == (0, 1)
    assert "strict fencing" in report.left_alone[0]["why"]
    assert ledger.in_flight(tenant) == 1
    silent = timezone.now() - timedelta(seconds=conf().replica_stale_seconds)
    Replica.objects.filter(pk=dead.pk).update(beat_at=silent)
    assert reconcile(claimant=claimant, by="a test").requeued == 1
    assert ledger.state(run) == "queued"


def a_runner() -> Any:
    secret = issue_enrolment_token(actor=SYSTEM)[1]
    token = enrol(secret, Machine("a runner", executors=("docker",)))[1]
    found = find_runner(token)
    assert found is not None
    return found


@pytest.mark.rule("Q2")
def test_a_revoked_runner_keeps_its_runs_until_their_lease_has_lapsed(
    strict: Any, make_tenant: Callable[..., Tenant]
) -> None:
    tenant, runner = make_tenant(1), a_runner()
    driver = runner_driver(runner)
    (run,) = ledger.submit(tenant)
    claimed = claim_runs(driver, "claim", Envelope(1))
    start_runs(driver, [(one.run, one.epoch) for one in claimed or ()])
    assert revoke_runner(runner.id, actor=SYSTEM, reason="a test") == 0
    assert (ledger.state(run), ledger.in_flight(tenant)) == ("running", 1)
    assert Run.objects.get(pk=run).lease_until is not None


@pytest.mark.rule("Q12")
def test_a_runner_that_keeps_no_fence_or_a_longer_one_is_given_nothing(strict: Any) -> None:
    refuse_unfenced(88)
    refuse_unfenced(20)
    for kept in (None, 89):
        with pytest.raises(Conflict) as refused:
            refuse_unfenced(kept)
        assert refused.value.code == "fence_required"
    strict.CONTROLPLANE = {**strict.CONTROLPLANE, "fence": "off"}
    refuse_unfenced(None)
