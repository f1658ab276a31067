"""The verbs over runs, permits, replicas and quotas, by REST and from the shell: one service function behind each."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db.models.functions import Now

from admission.models import Permit, Run
from admission.services.permits import claim_permit
from controlplane.core.models import AuditEntry
from leadership.models import Intent
from leadership.services.intents import declare
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


def test_an_effect_that_was_given_up_is_tried_again_over_rest_and_from_the_shell(
    operator: Caller, tenant: Caller
) -> None:
    declare("probe", {"a": {"to": "somebody"}, "b": {}})
    Intent.objects.update(dead_at=Now(), tries=12, error="no mail server")
    first, second = Intent.objects.order_by("pk")
    assert tenant.post(f"/intents/{first.pk}/retry", {"reason": "x"}).status_code == 403
    assert tenant.get("/intents").status_code == 403
    assert [one["key"] for one in operator.get("/intents?given_up=true").json()["results"]] == ["b", "a"]
    assert "somebody" not in str(operator.get("/intents").json())
    assert operator.post(f"/intents/{first.pk}/retry", {"reason": " "}).status_code == 400
    answer = operator.post(f"/intents/{first.pk}/retry", {"reason": "the server is back"})
    assert (answer.status_code, answer.json()["dead_at"], answer.json()["tries"]) == (202, None, 0)
    assert operator.post(f"/intents/{first.pk}/retry", {"reason": "again"}).status_code == 409
    assert operator.post("/intents/999999/retry", {"reason": "x"}).status_code == 404
    assert f"{second.pk}: probe b, 12 tries, GIVEN UP: no mail server" in shell("intents")
    assert [one["id"] for one in json.loads(shell("intents", "--json"))["intents"]] == [second.pk, first.pk]
    with pytest.raises(CommandError, match="Say why"):
        shell("intents", "--retry", second.pk)
    assert "is tried again" in shell("intents", "--retry", second.pk, "--reason", "so is this")
    with pytest.raises(CommandError, match="was not given up"):
        shell("intents", "--retry", second.pk, "--reason", "x")
    assert audited("retry") == [("probe a", "the server is back"), ("probe b", "so is this")]


def test_an_operator_says_why_and_a_tenant_with_its_own_need_not(operator: Caller, tenant: Caller) -> None:
    slug = tenant.tenant.slug
    ours = f"?tenant={slug}"
    assert tenant.post("/tokens", {"name": "mine"}).status_code == 201
    assert tenant.put("/secrets/MINE", {"value": "hunter2-and-more"}).status_code == 201
    assert tenant.delete("/secrets/MINE").status_code == 204
    token = tenant.get("/tokens").json()["results"][0]["id"]
    before = AuditEntry.objects.count()
    for reason in ({}, {"reason": ""}, {"reason": "  "}):
        said = "".join(f"&reason={value}" for value in reason.values())
        for answer in (
            operator.put(f"/tenants/{slug}/quota", {"limit": 3, **reason}),
            operator.delete(f"/tenants/{slug}/quota?{said}"),
            operator.put("/limits", {"scope": "key", "key": "k", "tenant": slug, "limit": 1, **reason}),
            operator.post(f"/tenants/{slug}/resume", reason),
            operator.delete(f"/tenants/{slug}?{said}"),
            operator.post(f"/tokens{ours}", {"name": "theirs", **reason}),
            operator.delete(f"/tokens/{token}{ours}{said}"),
            operator.put(f"/secrets/MINE{ours}", {"value": "hunter2-and-more", **reason}),
            operator.delete(f"/secrets/MINE{ours}{said}"),
            operator.post("/enrolment-tokens", reason),
        ):
            assert answer.status_code == 400, answer.content
            assert "reason" in answer.content.decode()
    assert AuditEntry.objects.count() == before
    assert operator.put(f"/tenants/{slug}/quota?dry_run=1", {"limit": 3}).status_code == 200, "nothing is done by it"
    assert operator.post(f"/tokens{ours}", {"name": "theirs", "reason": "they lost it"}).status_code == 201
    assert operator.delete(f"/tokens/{token}{ours}&reason=leaked").status_code == 204
    assert audited("issue_token")[-1] == (slug, "they lost it")
    assert audited("revoke_token") == [(slug, "leaked")]


@pytest.mark.parametrize(
    "words",
    [
        "limits --harness tank --set 3",
        "secret delete --tenant acme --name TOKEN",
        "secret reseal",
        "token issue acme --name theirs",
        "enrolment issue",
        "loops --run deadlines",
        "tenant resume acme --reason=",
        "step_down --reason=",
    ],
)
def test_a_verb_of_the_shell_says_why(words: str) -> None:
    ledger.make_tenant(slug="acme")
    with pytest.raises(CommandError, match="Say why"):
        shell(*words.split())
