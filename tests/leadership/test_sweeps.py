"""What the ledger's loops do: reap, audit, end pauses, take lapsed leases, tell of stuck runs, sample, forget."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.core import mail
from django.utils import timezone

from admission.models import Counter, Permit, Run, Tenant
from admission.services.conservation import audit_conservation
from admission.services.permits import claim_permit, renew_permits
from admission.services.reaping import reap_limit, reap_outside_permits, reap_run_permits
from admission.services.runs import HoldVerdict, renew_runs
from admission.services.sampling import sample
from admission.services.sweeps import end_pauses, pass_runner_leases
from admission.services.tenants import pause_tenant
from admission.states import Scope
from controlplane.core.audit import SYSTEM
from controlplane.core.models import AuditEntry, Hold, Sample
from controlplane.core.outages import clear, held
from leadership import selectors
from leadership.models import Intent
from leadership.registry import loops
from leadership.services import intents
from leadership.services.retention import delete_expired
from recovery.services.stuck import notify_stuck
from tests import ledger
from tests.leadership.webhook import Webhook

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = timedelta(hours=1)
Connect = Callable[..., psycopg.Connection[Any]]


def ready_to_reap() -> None:
    """The pass has looked just now, and no hold stands."""
    Hold.objects.update_or_create(
        name="permit_reap", defaults={"sign_at": timezone.now(), "until": timezone.now(), "taken_for": None}
    )


def lapse(**which: Any) -> None:
    Permit.objects.filter(**which).update(renewed_at=timezone.now() - HOUR)


# -- reaping ----------------------------------------------------------------------------------------------------------


@pytest.mark.rule("A11", "R8")
def test_a_lapsed_permit_of_a_run_is_a_takeover_of_the_run(make_tenant: Any, make_driver: Any, submit: Any) -> None:
    tenant, driver = make_tenant(2), make_driver()
    lost, kept = submit(tenant, 2)
    hold_of = {h[0]: h for h in ledger.start(driver, ledger.admit_all(driver))}
    lapse(run_id=lost)
    ready_to_reap()

    assert reap_run_permits().counts == {"runs": 1}

    row = ledger.run(lost)
    assert (row.state, row.reason, row.epoch > hold_of[lost][1]) == ("queued", "permit_lapse", True)
    assert ledger.state(kept) == "running"
    assert renew_runs(driver, [hold_of[lost]])[hold_of[lost]] is HoldVerdict.SUPERSEDED
    assert ledger.in_flight(tenant) == ledger.permits(tenant) == 1
    ledger.assert_conserved()


@pytest.mark.rule("A11")
def test_a_renewal_that_came_between_the_look_and_the_act_saves_the_run(
    make_tenant: Any, make_driver: Any, submit: Any, connect: Connect
) -> None:
    tenant, driver = make_tenant(1), make_driver()
    [run] = submit(tenant)
    ledger.start(driver, ledger.admit_all(driver))
    lapse(run_id=run)
    ready_to_reap()
    renewing, observer = connect(), connect(autocommit=True)
    renewing.execute("SELECT FROM admission_run WHERE id = %s FOR NO KEY UPDATE", (run,))
    renewing.execute("UPDATE admission_permit SET renewed_at = clock_timestamp() WHERE run_id = %s", (run,))

    call = ledger.Concurrent(reap_run_permits)
    ledger.until_waiting(observer, call)
    renewing.commit()

    assert call.result().counts == {"runs": 0}
    assert ledger.state(run) == "running"
    ledger.assert_conserved()


@pytest.mark.rule("A12", "A5", "A23")
def test_lapsed_permits_of_other_systems_are_freed_also_of_an_idle_tenant(make_tenant: Any) -> None:
    tenant = make_tenant(5)
    for holder, weight in (("ext:gone", 3), ("ext:here", 1)):
        claim_permit(holder, tenant_id=tenant.pk, weight=weight, lapse_seconds=60)
    lapse(holder="ext:gone")
    ready_to_reap()
    assert reap_outside_permits().counts == {"permits": 1}
    assert ledger.in_flight(tenant) == 1
    assert renew_permits(["ext:gone", "ext:here"], tenant_id=tenant.pk) == {"ext:here": 60}
    ledger.assert_conserved()


@pytest.mark.rule("A11")
def test_an_outside_permit_renewed_while_the_reaper_waits_stays(make_tenant: Any, connect: Connect) -> None:
    tenant = make_tenant(5)
    claim_permit("ext:a", tenant_id=tenant.pk)
    lapse(holder="ext:a")
    ready_to_reap()
    renewing = connect()
    renewing.execute("UPDATE admission_permit SET renewed_at = clock_timestamp()")
    assert reap_outside_permits().counts == {"permits": 0}, "under somebody's lock: left to the next pass"
    renewing.commit()
    assert reap_outside_permits().counts == {"permits": 0}
    assert ledger.in_flight(tenant) == 1


@pytest.mark.rule("A12")
def test_a_refusal_may_reap_its_own_limit_only_and_only_while_no_hold_stands(make_tenant: Any) -> None:
    mine, other = make_tenant(1), make_tenant(1)
    for tenant in (mine, other):
        claim_permit(f"ext:{tenant.pk}", tenant_id=tenant.pk, lapse_seconds=60)
    lapse()
    assert reap_limit(Scope.TENANT, str(mine.pk)) == 0, "nobody knows whether there was an outage"
    ready_to_reap()
    assert reap_limit(Scope.TENANT, str(mine.pk)) == 1
    assert (ledger.in_flight(mine), ledger.in_flight(other)) == (0, 1)


@pytest.mark.rule("A11")
def test_after_an_outage_nothing_is_reaped_for_one_renewal_interval_once(
    make_tenant: Any, make_driver: Any, submit: Any, settings: Any
) -> None:
    settings.CONTROLPLANE = {"permit_renew_seconds": 0.8, "permit_lapse_seconds": 2.4, "reap_interval_seconds": 0.1}
    tenant, driver = make_tenant(2), make_driver()
    submit(tenant)
    ledger.start(driver, ledger.admit_all(driver))
    claim_permit("ext:a", tenant_id=tenant.pk)
    ready_to_reap()
    lapse()
    time.sleep(0.5)  # no pass for longer than half a renewal: the database was away

    began = time.monotonic()
    assert reap_run_permits().counts == {"runs": 0, "held_after_outage": True}
    while time.monotonic() - began < 0.7:
        assert reap_run_permits().counts["runs"] == reap_outside_permits().counts["permits"] == 0
        time.sleep(0.05)
    time.sleep(0.15)
    assert reap_run_permits().counts == {"runs": 1}, "passes in between do not prolong the hold"
    assert reap_outside_permits().counts == {"permits": 1}
    ledger.assert_conserved()


@pytest.mark.rule("A11", "Q6")
def test_a_silence_that_goes_on_is_one_outage_and_a_new_sign_makes_the_next_one_another() -> None:
    old = timezone.now() - HOUR
    assert held("x", gap=10, length=0.2, sign=old)
    time.sleep(0.25)
    assert not held("x", gap=10, length=0.2, sign=old)
    assert held("x", gap=10, length=0.2, sign=old + timedelta(minutes=1))
    assert not held("y", gap=10, length=60, sign=timezone.now())
    assert held("z", gap=10, length=60), "a pass that never ran knows nothing"
    assert not clear("never", gap=10)


# -- runners' leases, pauses ------------------------------------------------------------------------------------------


@pytest.mark.rule("Q6")
def test_a_sign_that_was_fresh_at_the_first_look_starts_a_hold_when_nothing_follows_it() -> None:
    sign = timezone.now()
    assert not held("first look", gap=600, length=60, sign=sign)
    # The same sign, seen again when it is old: the outage began right after the first look.
    assert held("first look", gap=0, length=60, sign=sign)


@pytest.mark.rule("Q6")
def test_when_all_runners_fell_silent_at_once_one_full_lease_is_waited(
    make_tenant: Any, make_driver: Any, submit: Any, settings: Any
) -> None:
    settings.CONTROLPLANE = {"runner_lease_seconds": 0.6, "runner_heartbeat_seconds": 0.1}
    runner = make_driver("runner")
    [run] = submit(make_tenant(1))
    ledger.start(runner, ledger.admit_all(runner))
    Run.objects.filter(pk=run).update(lease_until=timezone.now() - HOUR)
    assert pass_runner_leases().counts == {"runner_lease": 0, "held_after_outage": True}
    time.sleep(0.65)
    assert pass_runner_leases().counts == {"runner_lease": 1}
    ledger.assert_conserved()


@pytest.mark.rule("A26")
def test_a_pause_ends_when_it_was_set_to(make_tenant: Any, submit: Any, make_driver: Any) -> None:
    over, later = make_tenant(1), make_tenant(1)
    for tenant in (over, later):
        pause_tenant(tenant, actor=SYSTEM, reason="x", resume_at=timezone.now() + HOUR)
    Tenant.objects.filter(pk=over.pk).update(resume_at=timezone.now() - HOUR)
    assert end_pauses().counts == {"pause_over": 1}
    paused = dict(Tenant.objects.values_list("slug", "paused_at"))
    assert paused[over.slug] is None
    assert paused[later.slug] is not None
    submit(over)
    assert len(ledger.admit_all(make_driver())) == 1


# -- conservation -----------------------------------------------------------------------------------------------------


@pytest.mark.rule("A17", "A5")
def test_drift_is_found_repaired_and_told_with_the_ids(make_tenant: Any, make_driver: Any, submit: Any) -> None:
    tenant, driver = make_tenant(5), make_driver()
    submit(tenant, 2)
    ledger.admit_all(driver)
    Counter.objects.filter(scope="tenant", key=str(tenant.pk)).update(in_flight=4)

    assert audit_conservation().counts == {"drifts": 1, "repaired": 1}

    assert ledger.in_flight(tenant) == 2
    entry = AuditEntry.objects.get(verb="repair")
    assert (entry.subject, entry.before) == (f"tenant {tenant.pk}", {"in_flight": 4})
    assert entry.after is not None
    assert len(entry.after["permits"]) == 2
    assert audit_conservation().counts == {"drifts": 0, "repaired": 0}
    ledger.assert_conserved()


@pytest.mark.rule("A17")
def test_a_repair_that_waited_for_an_admission_counts_what_it_admitted(make_tenant: Any, connect: Connect) -> None:
    tenant = make_tenant(9)
    claim_permit("ext:a", tenant_id=tenant.pk)
    Counter.objects.filter(scope="tenant", key=str(tenant.pk)).update(in_flight=4)
    claiming, observer = connect(), connect(autocommit=True)
    claiming.execute(
        "INSERT INTO admission_permit (holder, scope, key, weight, tenant_id, driver_name, acquired_at, renewed_at,"
        " lapse_seconds) SELECT 'ext:b', 'tenant', key, 2, tenant_id, '', now(), now(), 60 FROM admission_counter"
        " WHERE scope = 'tenant' AND key = %s",
        (str(tenant.pk),),
    )
    claiming.execute(
        "UPDATE admission_counter SET in_flight = in_flight + 2 WHERE scope = 'tenant' AND key = %s", (str(tenant.pk),)
    )
    call = ledger.Concurrent(audit_conservation)
    ledger.until_waiting(observer, call)
    claiming.commit()
    assert call.result().counts["repaired"] == 1
    assert ledger.in_flight(tenant) == 3
    ledger.assert_conserved()


# -- stuck runs, samples, retention -----------------------------------------------------------------------------------


@pytest.mark.rule("L6", "L8")
def test_a_stuck_run_is_told_of_once_whoever_looks_and_however_often(
    make_tenant: Any, make_driver: Any, submit: Any, settings: Any
) -> None:
    settings.CONTROLPLANE = {"notify_email": "ops@example.org, more@example.org"}
    driver = make_driver()
    stuck, fine = submit(make_tenant(2), 2)
    ledger.start(driver, ledger.admit_all(driver))
    Run.objects.filter(pk=stuck).update(cancel_requested_at=timezone.now() - HOUR)

    for call in [ledger.Concurrent(notify_stuck) for _ in range(3)]:
        call.result()
    for call in [ledger.Concurrent(intents.deliver) for _ in range(3)]:
        call.result()
    notify_stuck()
    intents.deliver()

    assert [m.to for m in mail.outbox] == [["ops@example.org", "more@example.org"]]
    assert str(stuck) in mail.outbox[0].subject
    assert str(fine) not in mail.outbox[0].subject
    assert Intent.objects.get().done_at is not None


@pytest.mark.rule("L6", "L8")
def test_a_stuck_run_is_posted_until_the_webhook_takes_it_and_mailed_once(
    make_tenant: Any, make_driver: Any, submit: Any, settings: Any, webhook: Webhook
) -> None:
    settings.CONTROLPLANE = {"notify_email": "ops@example.org", "notify_webhook_url": webhook.url}
    driver, tenant = make_driver(), make_tenant(1)
    [stuck] = submit(tenant)
    ledger.start(driver, ledger.admit_all(driver))
    Run.objects.filter(pk=stuck).update(cancel_requested_at=timezone.now() - HOUR)
    webhook.answers = [503, 302, 204]
    for _ in range(5):
        notify_stuck()
        intents.deliver()
        Intent.objects.update(next_at=timezone.now())  # its pause is over

    assert len(webhook.heard) == 3, "again after a failure and a redirect, not after an acceptance"
    keys = {(headers["Idempotency-Key"], body["key"]) for headers, body in webhook.heard}
    assert keys == {(f"{stuck}.cancel_unanswered",) * 2}
    body = webhook.heard[0][1]
    assert (body["event"], body["run"], body["tenant"], body["driver"]) == (
        "run.stuck", stuck, tenant.slug, driver.name,
    )  # fmt: skip
    assert len(mail.outbox) == 1, "a webhook that is away does not repeat the mail"
    assert Intent.objects.filter(done_at__isnull=True).count() == 0


@pytest.mark.rule("L6")
def test_a_replica_that_has_no_webhook_leaves_the_notification_to_one_that_has(
    make_tenant: Any, submit: Any, settings: Any, webhook: Webhook
) -> None:
    settings.CONTROLPLANE = {"notify_webhook_url": webhook.url}
    submit(make_tenant(0))
    long_ago = timezone.now() - timedelta(days=2)
    Run.objects.update(created_at=long_ago, rank_at=long_ago)
    notify_stuck()
    settings.CONTROLPLANE = {}
    assert intents.deliver().counts["failed"] == 1
    assert "CONTROLPLANE_NOTIFY_WEBHOOK_URL" in Intent.objects.get(done_at__isnull=True).error
    assert webhook.heard == []


@pytest.mark.rule("L8")
def test_a_run_that_waits_for_a_day_is_stuck_unless_its_tenant_is_paused(make_tenant: Any, submit: Any) -> None:
    waiting, paused = make_tenant(0), make_tenant(0)
    for tenant in (waiting, paused):
        submit(tenant)
    long_ago = timezone.now() - timedelta(days=2)
    Run.objects.update(created_at=long_ago, rank_at=long_ago)
    pause_tenant(paused, actor=SYSTEM, reason="x")
    assert notify_stuck().counts == {"stuck": 1, "new": 1}


@pytest.mark.rule("L6")
def test_an_effect_that_fails_is_tried_again_later_and_given_up_in_sight(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(key: str, payload: Any) -> None:
        raise OSError("no mail server")

    monkeypatch.setitem(intents._handlers, "probe", refuses)
    assert intents.declare("probe", {"a": {"x": 1}}) == ["a"]
    assert intents.declare("probe", {"a": {"x": 2}}) == []
    assert intents.deliver().counts == {"delivered": 0, "failed": 1}
    row = Intent.objects.get()
    assert (row.tries, "no mail server" in row.error, row.next_at > timezone.now()) == (1, True, True)
    assert intents.deliver().counts == {"delivered": 0, "failed": 0}, "not before its time"
    Intent.objects.update(tries=intents.MOST_TRIES - 1, next_at=timezone.now() - HOUR)
    intents.deliver()
    assert "intents_given_up" in [a.code for a in selectors.read_alarms()]
    intents.retry_intent(row, actor=SYSTEM, reason="the server is back")
    assert Intent.objects.get().dead_at is None
    assert intents.deliver().counts == {"delivered": 0, "failed": 1}, "at once, not at the time of its last try"


@pytest.mark.rule("L8")
def test_samples_are_one_row_a_minute_and_are_forgotten(make_tenant: Any, make_driver: Any, submit: Any) -> None:
    tenant, driver = make_tenant(2), make_driver()
    submit(tenant, 3)
    ledger.admit_all(driver)
    sample()
    sample()
    values = {(s.series, s.key): s.value for s in Sample.objects.all()}
    assert values[("runs", "queued")] == 1
    assert values[("runs", "admitted")] == values[("in_flight", tenant.slug)] == values[("limit", tenant.slug)] == 2
    Sample.objects.update(at=timezone.now() - timedelta(days=31))
    assert delete_expired().counts["samples"] == len(values)


@pytest.mark.rule("L8")
def test_every_loop_of_the_contract_that_exists_is_declared_with_its_gate() -> None:
    gates = {name: loop.gate.value for name, loop in loops().items()}
    gated = {"deadlines", "runner-leases", "permit-reap", "conservation", "samples", "stuck-runs"}
    local = {"beat", "holds", "reconcile", "lease", "ticker", "intents", "retention", "log-retention"}
    assert {n for n, g in gates.items() if g == "leader"} >= gated
    assert {n for n, g in gates.items() if g == "local"} >= local
    assert all(loop.why and loop.seconds() > 0 for loop in loops().values())
