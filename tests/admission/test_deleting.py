"""Deleting a tenant, and pauses that end by themselves."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db.models import PROTECT
from django.utils import timezone

from admission.belongings import read_belongings
from admission.models import Attempt, Batch, Counter, Permit, Run, Tenant
from admission.services import deleting
from admission.services.deleting import delete_tenant, finish_deletions
from admission.services.limits import set_harness_capacity
from admission.services.permits import claim_permit, release_permit
from admission.services.sweeps import end_pauses
from admission.services.tenants import pause_tenant, resume_tenant
from controlplane.core.audit import SYSTEM
from controlplane.core.errors import Conflict, NotFound
from controlplane.core.models import AuditEntry
from runners.models import Runner
from runners.services.claims import Claim
from runners.services.enrolment import EnrolmentRefused, Machine, enrol, issue_enrolment_token
from runners.services.fleet import find_runner, revoke_runner, runner_driver
from runners.services.logs import append_log
from tests import ledger

pytestmark = pytest.mark.django_db(transaction=True)


def delete(tenant: Tenant, *, drain: bool = False) -> bool:
    return delete_tenant(tenant, actor=SYSTEM, reason="contract ended", drain=drain)


def sweep() -> int:
    steps = 0
    while finish_deletions().more:
        steps += 1
        assert steps < 1000
    return steps


def is_here(tenant: Tenant) -> bool:
    return Tenant.objects.filter(pk=tenant.pk).exists()


@pytest.mark.rule("A26")
@pytest.mark.parametrize("live", ["queued", "delayed", "admitted", "running", "outside"])
def test_live_work_refuses_and_nothing_changes(make_tenant: Any, make_driver: Any, submit: Any, live: str) -> None:
    tenant, driver = make_tenant(3), make_driver()
    if live == "outside":
        claim_permit("ext:a", tenant_id=tenant.pk)
    else:
        later = {"not_before": (timezone.now() + timedelta(hours=1)).isoformat()} if live == "delayed" else {}
        submit(tenant, **later)
    if live in ("admitted", "running"):
        admitted = ledger.admit_all(driver)
        if live == "running":
            ledger.start(driver, admitted)
    with pytest.raises(Conflict) as refusal:
        delete(tenant)
    assert refusal.value.code == "tenant_busy"
    tenant.refresh_from_db()
    assert tenant.deleting_at is None
    assert sweep() == 0
    ledger.assert_conserved()


@pytest.mark.rule("A26")
def test_a_tenant_without_live_work_goes_with_its_history_in_batches(
    make_tenant: Any, make_driver: Any, submit: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(deleting, "BATCH", 3)
    tenant, other, driver = make_tenant(20), make_tenant(20), make_driver()
    submit(tenant, 10, concurrency_key="deploy", harness="tank")
    [kept] = submit(other)
    while admitted := ledger.admit_all(driver):
        held = ledger.start(driver, admitted)
        append_log(driver, *held[0], 0, b"hello")
        ledger.succeed(driver, held)
    assert delete(tenant) is True
    assert not is_here(tenant)
    assert list(Run.objects.values_list("id", flat=True)) == [kept]
    assert set(Attempt.objects.values_list("run_id", flat=True)) == {kept}
    assert not Counter.objects.filter(tenant_id=tenant.pk).exists()
    assert Counter.objects.get(scope="harness").in_flight == 0
    assert set(AuditEntry.objects.filter(subject=tenant.slug, verb__startswith="delete").values_list("verb")) == {
        ("delete",),
        ("deleted",),
    }
    ledger.assert_conserved()
    with pytest.raises(NotFound):
        delete(tenant)


@pytest.mark.rule("A26", "A9")
def test_draining_cancels_what_is_queued_waits_for_what_runs_and_leaks_no_permit(
    make_tenant: Any, make_driver: Any, submit: Any
) -> None:
    tenant, driver = make_tenant(2), make_driver()
    set_harness_capacity("tank", 2, actor=SYSTEM)
    runs = submit(tenant, 5, harness="tank", concurrency_key="a")
    held = ledger.start(driver, ledger.admit_all(driver))
    claim_permit("ext:a", tenant_id=tenant.pk)
    assert delete(tenant, drain=True) is False
    states = [ledger.state(run) for run in runs]
    assert (states.count("running"), states.count("cancelled")) == (1, 4)
    tenant.refresh_from_db()
    assert tenant.deleting_at is not None
    assert sweep() == 0, "it waits"
    with pytest.raises(NotFound):
        ledger.submit(tenant)
    with pytest.raises(NotFound):
        claim_permit("ext:b", tenant_id=tenant.pk)
    ledger.succeed(driver, held)
    assert sweep() == 0, "an outside permit is held still"
    assert release_permit("ext:a", tenant_id=tenant.pk) is True
    assert sweep() > 0
    assert not is_here(tenant)
    assert not Permit.objects.exists()
    assert Counter.objects.get(scope="harness").in_flight == 0
    ledger.assert_conserved()


@pytest.mark.rule("A26")
def test_a_run_that_comes_back_to_the_queue_meanwhile_is_cancelled_too(
    make_tenant: Any, make_driver: Any, submit: Any
) -> None:
    tenant, driver = make_tenant(1), make_driver()
    [run] = submit(tenant, retry={"backoff_seconds": 60})
    held = ledger.start(driver, ledger.admit_all(driver))
    delete(tenant, drain=True)
    ledger.give_back(driver, held)
    assert ledger.state(run) == "queued"
    ledger.holds_for(2, lambda: ledger.admit_all(driver) == [])
    assert sweep() > 0
    assert not is_here(tenant)
    ledger.assert_conserved()


@pytest.mark.rule("A26")
def test_a_tenant_that_waits_keeps_no_other_from_going(make_tenant: Any, make_driver: Any, submit: Any) -> None:
    waits, goes, driver = make_tenant(1), make_tenant(1), make_driver()
    for tenant in (waits, goes):
        submit(tenant)
    held = {h[0]: h for h in ledger.start(driver, ledger.admit_all(driver))}
    for tenant in (waits, goes):
        assert delete(tenant, drain=True) is False
    theirs = Run.objects.get(tenant=goes).pk
    ledger.succeed(driver, [held[theirs]])
    sweep()
    assert (is_here(waits), is_here(goes)) == (True, False)


@pytest.mark.rule("A26")
def test_a_deletion_waits_for_an_admission_under_way_and_sees_its_run(
    make_tenant: Any, make_driver: Any, submit: Any, connect: Any
) -> None:
    tenant, observer, admitting = make_tenant(1), connect(autocommit=True), connect()
    [run] = submit(tenant)
    admitting.execute("SELECT FROM admission_tenant WHERE id = %s FOR KEY SHARE", (tenant.pk,))
    admitting.execute(
        """UPDATE admission_run SET state = 'admitted', attempt = 1, epoch = 1, driver_kind = 'replica', driver_id = 1
           WHERE id = %s""",
        (run,),
    )
    call = ledger.Concurrent(delete_tenant, tenant, actor=SYSTEM, reason="", drain=True)
    ledger.until_waiting(observer, call)
    admitting.commit()
    assert call.result() is False
    assert ledger.state(run) == "admitted"
    assert is_here(tenant)


@pytest.mark.rule("A26")
def test_runners_of_its_own_refuse_by_name_before_it_is_marked_unless_they_are_revoked(make_tenant: Any) -> None:
    tenant = make_tenant()
    runner = Runner.objects.create(name="rack", shown="x", hash=b"h" * 32, tenant=tenant)
    shared = Runner.objects.create(name="everybody's", shown="y", hash=b"i" * 32)
    with pytest.raises(Conflict, match=rf"1 runners of its own: rack \({runner.pk}\)"):
        delete(tenant)
    tenant.refresh_from_db()
    assert tenant.deleting_at is None
    revoke_runner(runner.pk, actor=SYSTEM, reason="sold")
    assert delete(tenant) is True
    assert list(Runner.objects.values_list("pk", flat=True)) == [shared.pk]


@pytest.mark.rule("A26")
def test_drained_its_own_runners_finish_what_they_have_and_go_with_it(make_tenant: Any, submit: Any) -> None:
    tenant = make_tenant(1)
    enrolment = issue_enrolment_token(actor=SYSTEM, tenant=tenant, uses=2)[1]
    runner, secret = enrol(enrolment, Machine("rack", slots=1, executors=("docker",)))
    identity = find_runner(secret)
    assert identity is not None
    driver = Claim(runner_driver(identity), "r").driver
    submit(tenant, 3)
    held = ledger.start(driver, ledger.admit_all(driver, 1))
    assert delete(tenant, drain=True) is False
    assert sweep() == 0, "it waits"
    assert find_runner(secret) is not None, "it works on"
    ledger.succeed(driver, held)
    assert sweep() > 0
    assert not is_here(tenant)
    assert not Runner.objects.exists()
    assert find_runner(secret) is None
    with pytest.raises(EnrolmentRefused):
        enrol(enrolment, Machine("another", slots=1, executors=("docker",)))
    assert AuditEntry.objects.filter(verb="revoke", subject=str(runner.pk)).exists()
    ledger.assert_conserved()


@pytest.mark.rule("A26")
def test_whatever_protects_a_tenant_is_known_to_its_deletion() -> None:
    known = {Run, Attempt, Batch, Permit, *(belonging.model for belonging in read_belongings())}
    relations = Tenant._meta.get_fields(include_hidden=True)
    protecting = {r.related_model for r in relations if getattr(r, "on_delete", None) is PROTECT}
    assert protecting == known


@pytest.mark.rule("A26")
def test_a_pause_ends_by_itself_and_only_when_its_end_has_passed(
    make_tenant: Any, make_driver: Any, submit: Any
) -> None:
    tenant, driver = make_tenant(1), make_driver()
    [run] = submit(tenant)
    pause_tenant(tenant, actor=SYSTEM, reason="night", resume_at=timezone.now() + timedelta(hours=1))
    ledger.holds_for(2, lambda: ledger.admit_all(driver) == [], end_pauses)
    assert resume_tenant(tenant, actor=SYSTEM, if_due=True) is False, "judged again by the act"
    Tenant.objects.update(resume_at=timezone.now() - timedelta(seconds=1))
    assert end_pauses().counts == {"pause_over": 1}
    assert [a.run for a in ledger.admit_all(driver)] == [run]
    tenant.refresh_from_db()
    assert (tenant.paused_at, tenant.pause_note, tenant.resume_at) == (None, "", None)
    assert resume_tenant(tenant, actor=SYSTEM, if_due=True) is False


@pytest.mark.rule("O2", "A26")
def test_by_manage_py(make_tenant: Any) -> None:
    tenant = make_tenant(slug="acme")

    def say(*arguments: str) -> str:
        out = StringIO()
        call_command("tenant", *arguments, "--reason", "by hand", stdout=out)
        return out.getvalue()

    assert say("pause", "acme", "--until", "2100-01-01T00:00:00Z") == "acme: paused\n"
    tenant.refresh_from_db()
    assert (tenant.pause_note, tenant.resume_at.year) == ("by hand", 2100)  # type: ignore[union-attr]
    assert say("pause", "acme") == "acme: was paused already\n"
    assert say("resume", "acme") == "acme: resumed\n"
    for wrong in (("pause", "acme", "--until", "tomorrow"), ("pause", "acme", "--until", "2100-13-01T00:00:00Z")):
        with pytest.raises(CommandError):
            say(*wrong)
    ledger.submit(tenant)
    with pytest.raises(CommandError, match="not ended"):
        say("delete", "acme")
    assert say("delete", "acme", "--drain") == "acme: deleted\n"
    with pytest.raises(CommandError, match="no tenant"):
        say("resume", "acme")
