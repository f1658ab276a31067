"""The verbs over runs, permits, replicas and quotas, by REST and from the shell: one service function behind each."""

from __future__ import annotations

import io
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from admission.models import Permit, Run
from admission.services.permits import claim_permit
from controlplane.core.models import AuditEntry
from recovery.models import Replica
from tests import ledger
from tests.admin.world import replica
from tests.api.conftest import Caller

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.rule("O2")]


def shell(*words: Any) -> str:
    out = io.StringIO()
    call_command(*map(str, words), stdout=out)
    return out.getvalue()


def audited(verb: str) -> list[tuple[str, str]]:
    return list(AuditEntry.objects.filter(verb=verb).order_by("id").values_list("subject", "reason"))


@pytest.fixture
def held(make_tenant: Any, make_driver: Any, submit: Any) -> Run:
    tenant, driver = make_tenant(2), make_driver()
    submit(tenant, 1)
    (admitted,) = ledger.admit_all(driver)
    return Run.objects.get(pk=admitted.run)


def test_a_run_is_requeued_over_rest_by_an_operator_alone(operator: Caller, tenant: Caller, held: Run) -> None:
    assert tenant.post(f"/runs/{held.pk}/requeue", {"reason": "x"}).status_code == 403
    assert operator.post(f"/runs/{held.pk}/requeue", {}).status_code == 400
    answer = operator.post(f"/runs/{held.pk}/requeue", {"reason": "it is stuck"})
    assert (answer.status_code, answer.json()["state"]) == (200, "queued")
    again = operator.post(f"/runs/{held.pk}/requeue", {"reason": "again"})
    assert (again.status_code, again.json()["code"]) == (409, "run_not_held")
    assert audited("requeue") == [(str(held.pk), "it is stuck")]
    assert not Permit.objects.exists()


def test_runs_are_requeued_and_cancelled_from_the_shell(held: Run) -> None:
    with pytest.raises(CommandError, match="requeue 1 of 2 runs"):
        shell("run", "requeue", held.pk, 999_999, "--reason", "x")
    said = shell("run", "requeue", held.pk, 999_999, "--reason", "stuck", "--yes")
    assert f"run {held.pk}: taken from its driver, queued now" in said
    assert "run 999999: had ended, or is not there" in said
    assert f"run {held.pk}: cancelled" in shell("run", "cancel", held.pk, "--reason", "not needed", "--yes")
    assert audited("cancel") == [(str(held.pk), "not needed")]


def test_a_permit_is_forced_free_over_rest_and_from_the_shell(operator: Caller, tenant: Caller, held: Run) -> None:
    name = f"{held.pk}.{held.attempt}"
    assert tenant.post(f"/permits/{name}/force-release", {"reason": "x"}).status_code == 403
    answer = operator.post(f"/permits/{name}/force-release", {"reason": "its driver hangs"})
    assert answer.json() == {"runs_taken": 1, "released": 0, "gone": 0}
    assert operator.post(f"/permits/{name}/force-release", {"reason": "x"}).status_code == 404
    slug = tenant.tenant.slug
    claim_permit(f"ext:{tenant.tenant.pk}:crane", tenant_id=tenant.tenant.pk)
    with pytest.raises(CommandError, match="named together with its tenant"):
        shell("permit", "force-release", "crane", "--reason", "x", "--yes")
    said = shell("permit", "force-release", "crane", "--tenant", slug, "--reason", "it is lost", "--yes")
    assert "0 runs taken over, 1 outside permits released" in said
    assert audited("force_release")[-1][1] == "it is lost"
    assert not Permit.objects.exists()


def test_a_replica_is_drained_and_resumed_over_rest_and_from_the_shell(operator: Caller, tenant: Caller) -> None:
    row = replica("north")
    assert tenant.post(f"/replicas/{row.pk}/drain", {"reason": "x"}).status_code == 403
    assert operator.post(f"/replicas/{row.pk + 1}/drain", {"reason": "x"}).status_code == 404
    drained = operator.post(f"/replicas/{row.pk}/drain", {"reason": "a new kernel"}).json()
    assert (drained["state"], drained["drain_note"]) == ("draining", "a new kernel")
    assert operator.post(f"/replicas/{row.pk}/resume", {"reason": "done"}).json()["state"] == "live"
    assert "north: drains" in shell("replicas", "drain", "north", "--reason", "again", "--yes")
    assert Replica.objects.get().draining_at is not None
    assert "north: takes work again" in shell("replicas", "resume", "north", "--reason", "done", "--yes")
    assert "north\tactive\t0/8" in shell("replicas", "list")
    with pytest.raises(CommandError, match="No living replica is called 'south'"):
        shell("replicas", "drain", "south", "--reason", "x", "--yes")
    assert [subject for subject, _ in audited("drain")] == ["north", "north"]


def test_a_quota_is_set_and_removed_from_the_shell(make_tenant: Any) -> None:
    tenant = make_tenant(3)
    with pytest.raises(CommandError, match="nobody to ask"):
        shell("tenant", "quota", tenant.slug, "--limit", 5, "--reason", "x")
    said = shell("tenant", "quota", tenant.slug, "--limit", 5, "--reason", "they grew", "--yes")
    assert "0 in use, new limit 5." in said
    assert "no quota any more" in shell(
        "tenant", "quota", tenant.slug, "--limit", "none", "--reason", "unlimited now", "--yes"
    )
    with pytest.raises(CommandError, match="whole number"):
        shell("tenant", "quota", tenant.slug, "--limit", "1.5", "--reason", "x", "--yes")
    assert audited("set_quota")[-1] == (tenant.slug, "they grew")
