"""Secrets: encrypted at rest, given to the holder alone, hidden everywhere else."""

from __future__ import annotations

import io
import json
import logging
import re
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from admission.services.runs import Settlement, settle_runs, start_runs
from controlplane.core.audit import SYSTEM
from controlplane.core.models import AuditEntry
from recovery.replica.holds import HoldKeeper
from runners.agent.assignment import Assignment, Capacity, Ending, Result
from runners.agent.driver import Driver as AgentDriver
from runners.database_control import DatabaseControl
from runners.models import LogChunk, Secret
from runners.services import secrets
from runners.services.hiding import maskers
from runners.services.logs import append_log, read_log
from runners.services.sealing import Unreadable, seal, unseal
from tests import ledger
from tests.api.conftest import Caller
from tests.runners.conftest import RunnerCaller, named

VALUE = "hunter2-and-more"


@pytest.fixture(autouse=True)
def _read_anew() -> None:
    """Values are kept for half a minute; another test's run may have had the same number."""
    maskers.forget()


def put(tenant: Caller, name: str = "TOKEN", value: str = VALUE) -> Any:
    return tenant.put(f"/secrets/{name}", {"value": value})


def submit(tenant: Caller, **spec: Any) -> int:
    return ledger.submit(tenant.tenant, secrets=["TOKEN"], **spec)[0]


def replica() -> DatabaseControl:
    return DatabaseControl(ledger.make_driver())


@pytest.mark.rule("Q13")
def test_it_is_encrypted_at_rest_and_listed_without_its_value(tenant: Caller, connect: Any) -> None:
    assert put(tenant).status_code == 201
    assert put(tenant, value="another-value").status_code == 200
    listed = tenant.get("/secrets").json()["results"]
    assert [(one["name"], one["tenant"]) for one in listed] == [("TOKEN", tenant.tenant.slug)]
    assert set(listed[0]) == {"name", "tenant", "created_at", "updated_at", "updated_by"}
    row = Secret.objects.get()
    for stored in (bytes(row.value), bytes(row.previous)):
        assert VALUE.encode() not in stored
        assert b"another-value" not in stored
    assert unseal(tenant.tenant.pk, "TOKEN", bytes(row.value)) == "another-value"
    told = json.dumps(list(AuditEntry.objects.values("verb", "subject", "before", "after", "reason", "actor")))
    assert "set_secret" in told
    assert VALUE not in told
    assert "another-value" not in told


@pytest.mark.rule("Q13")
def test_another_tenants_secrets_are_neither_seen_nor_touched(tenant: Caller, stranger: Caller) -> None:
    put(tenant)
    assert stranger.get("/secrets").json()["results"] == []
    assert stranger.delete("/secrets/TOKEN").status_code == 404
    refused = stranger.post("/runs", {"command": ["true"], "secrets": ["TOKEN"]})
    assert refused.status_code == 400
    assert refused.json()["errors"] == [
        {"field": "secrets", "error": "there is no secret 'TOKEN'; set it first (wharfinger secret set TOKEN)"}
    ]


@pytest.mark.rule("Q13")
@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("TOKEN", "x", "at least 8 bytes"),
        ("TOKEN", "zyxw    ", "at least 8 bytes"),
        ("TOKEN", "v" * 33_000, "at most 32768 bytes"),
        ("1TOKEN", VALUE, "letters, digits"),
        ("MY-TOKEN", VALUE, "letters, digits"),
        ("WHARFINGER_RUN", VALUE, "the product's own"),
    ],
)
def test_what_could_not_be_kept_secret_is_refused_without_the_value(
    tenant: Caller, name: str, value: str, why: str
) -> None:
    answer = put(tenant, name, value)
    assert answer.status_code == 400
    assert why in answer.json()["detail"]
    assert not {"zyxw", "vvvv", VALUE} & set(re.findall(r"zyxw|vvvv|hunter2-and-more", answer.content.decode()))
    assert not Secret.objects.exists()


@pytest.mark.rule("Q13")
def test_a_value_of_the_wrong_type_is_not_repeated_in_the_answer(tenant: Caller) -> None:
    answer = tenant.put("/secrets/TOKEN", {"value": {"hidden": VALUE}})
    assert answer.status_code == 400
    assert VALUE not in answer.content.decode()
    nul = tenant.put("/secrets/TOKEN", b'{"value": "hunter2-and-more\\u0000"}')
    assert nul.status_code == 400
    assert VALUE not in nul.content.decode()


@pytest.mark.rule("Q13")
def test_only_the_accepted_claim_carries_it(tenant: Caller, runner: RunnerCaller) -> None:
    put(tenant)
    run = submit(tenant)
    [given] = runner.claimed("once")
    assert given["secrets"] == {"TOKEN": VALUE}
    assert runner.claimed("once")[0]["secrets"] == {"TOKEN": VALUE}  # a repeat of the claim gets the same (Q4)
    others = [
        runner.get("/runner/holds"),
        runner.post("/runner/starts", {"runs": [named(given)]}),
        runner.get("/runner"),
        tenant.get("/runs"),
        tenant.get(f"/runs/{run}"),
        tenant.get(f"/runs/{run}/why"),
    ]
    assert all(answer.status_code == 200 for answer in others)
    assert not [answer for answer in others if VALUE in answer.content.decode()]


@pytest.mark.rule("Q13")
def test_nothing_is_given_for_a_hold_that_has_moved_on(tenant: Caller) -> None:
    put(tenant)
    run = submit(tenant)
    driver, other = ledger.make_driver(), ledger.make_driver()
    [admitted] = ledger.admit_all(driver)
    hold = (run, admitted.epoch)
    assert secrets.give(driver, [hold]).values == {hold: {"TOKEN": VALUE}}
    assert secrets.give(other, [hold]).values == {}
    assert secrets.give(driver, [(run, admitted.epoch - 1)]).values == {}
    start_runs(driver, [hold])
    assert secrets.give(driver, [hold]).values == {hold: {"TOKEN": VALUE}}  # what an adopting replica asks
    settle_runs(driver, [Settlement(*hold, "succeeded")])
    assert secrets.give(driver, [hold]).values == {}


@pytest.mark.rule("Q13")
@pytest.mark.rule("A25")
def test_a_run_whose_secret_was_deleted_is_set_aside_and_the_next_is_served(tenant: Caller) -> None:
    put(tenant)
    broken = submit(tenant)
    sound = ledger.submit(tenant.tenant)[0]
    assert tenant.delete("/secrets/TOKEN").status_code == 204
    given = replica().claim("r", Capacity(slots=5))
    assert [one.run for one in given] == [sound]
    row = ledger.run(broken)
    assert (row.state, row.reason) == ("failed", "invalid_spec")
    assert "there is no secret 'TOKEN'" in row.detail
    ledger.assert_conserved()


@pytest.mark.rule("Q13")
@pytest.mark.rule("A25")
def test_a_secret_that_no_key_opens_ends_its_run_with_the_reason(tenant: Caller, runner: RunnerCaller) -> None:
    put(tenant)
    broken = submit(tenant)
    sound = ledger.submit(tenant.tenant)[0]
    Secret.objects.update(value=seal(tenant.tenant.pk + 1, "TOKEN", VALUE))  # swapped in by whoever writes the table
    assert [one["run"] for one in runner.claimed("r")] == [sound]
    row = ledger.run(broken)
    assert (row.state, row.reason) == ("failed", "secret_missing")
    assert "sealed for another place" in row.detail
    ledger.assert_conserved()


@pytest.mark.rule("Q13")
def test_a_replica_is_given_it_and_again_for_what_it_takes_up(tenant: Caller) -> None:
    put(tenant)
    run = submit(tenant)
    control = replica()
    [given] = control.claim("r", Capacity(slots=1))
    assert given.secrets == {"TOKEN": VALUE}
    assert VALUE not in repr(given)
    taken: list[Assignment] = []
    driver = AgentDriver(control, SimpleNamespace(slots=None), slots=1)  # type: ignore[arg-type] - never started
    driver.take_up = taken.extend  # type: ignore[method-assign, assignment]
    HoldKeeper(control, driver).tick()
    assert [(one.run, one.secrets) for one in taken] == [(run, {"TOKEN": VALUE})]


@pytest.mark.rule("Q13")
@pytest.mark.rule("R10")
def test_an_adopted_run_goes_on_and_is_masked_whatever_became_of_its_secret(tenant: Caller) -> None:
    put(tenant)
    submit(tenant)
    control = replica()
    [given] = control.claim("r", Capacity(slots=1))
    adopted = replace(given, secrets={})
    put(tenant, value="another-value")
    assert sorted(control.with_hidden(adopted).secrets.values()) == ["another-value", VALUE]
    tenant.delete("/secrets/TOKEN")
    assert control.with_hidden(adopted).secrets == {}
    assert ledger.state(given.run) == "admitted"


@pytest.mark.rule("Q13")
@pytest.mark.parametrize("cuts", [(5,), (1, 2, 3, 9), tuple(range(1, 30))])
def test_the_server_hides_it_also_across_chunks(tenant: Caller, cuts: tuple[int, ...]) -> None:
    put(tenant)
    run = submit(tenant)
    driver = ledger.make_driver()
    [admitted] = ledger.admit_all(driver)
    ledger.start(driver, [admitted])
    text = f"a={VALUE} b={VALUE}!\n".encode()
    places = [0, *cuts, len(text)]
    for first, last in pairwise(places):
        done = append_log(driver, run, admitted.epoch, first, text[first:last])
        assert done.stored == last  # the driver's offsets hold
    stars = "*" * len(VALUE)
    assert read_log(run).data.decode() == f"a={stars} b={stars}!\n"
    assert sum(len(chunk.data) for chunk in LogChunk.objects.all()) == len(text)


@pytest.mark.rule("Q13")
def test_the_server_hides_it_in_every_usual_spelling_and_the_value_before(tenant: Caller) -> None:
    old, new = 'pass "word"/1', "-----BEGIN KEY-----\nabcdefghijkl\nmnopqrstuvwx\n-----END KEY-----"
    put(tenant, value=old)
    run = submit(tenant)
    driver = ledger.make_driver()
    [admitted] = ledger.admit_all(driver)
    put(tenant, value=new)
    printed = [
        old,
        json.dumps(old),
        "pass%20%22word%22%2F1",
        "cGFzcyAid29yZCIvMQ==",
        "mnopqrstuvwx\r\n",
        json.dumps(new),
    ]
    text = "\n".join(printed).encode()
    append_log(driver, run, admitted.epoch, 0, text)
    shown = read_log(run).data.decode()
    for hidden in ("word", "cGFzcyAid29y", "mnopqrstuvwx", "abcdefghijkl"):
        assert hidden not in shown


@pytest.mark.rule("Q13")
def test_an_error_message_of_a_result_does_not_tell_it(tenant: Caller, runner: RunnerCaller) -> None:
    put(tenant)
    over_rest, by_replica = submit(tenant), submit(tenant)
    [given] = runner.claimed(slots=1)
    runner.post("/runner/starts", {"runs": [named(given)]})
    runner.post("/runner/results", {"results": [named(given, ending="failed", detail=f"exec {VALUE}: not found")]})
    control = replica()
    [held] = control.claim("r", Capacity(slots=1))
    control.start([held.key])
    control.settle([Result(held.run, held.epoch, Ending.FAILED, "executor_error", f"exec {VALUE}: not found")])
    for run in (over_rest, by_replica):
        assert ledger.run(run).detail == "exec [masked]: not found"
        assert VALUE not in tenant.get(f"/runs/{run}").content.decode()


@pytest.mark.rule("Q13")
def test_keys_are_changed_without_losing_anything(tenant: Caller, settings: Any) -> None:
    put(tenant)
    first, second = "the first key of them all", "and another one after it"

    def keys(*given: str) -> Any:
        return override_settings(CONTROLPLANE={**settings.CONTROLPLANE, "secrets_keys": ",".join(given)})

    def opened() -> str:
        return unseal(tenant.tenant.pk, "TOKEN", bytes(Secret.objects.get().value))

    with keys(first):
        assert opened() == VALUE  # sealed with SECRET_KEY's
        call_command("secret", "reseal", reason="a new key", stdout=io.StringIO())
    with keys(second, first):
        assert opened() == VALUE
        assert secrets.reseal_secrets(actor=SYSTEM) == 1
    with keys(second):
        assert opened() == VALUE
    with keys(first), pytest.raises(Unreadable) as told:
        opened()
    assert VALUE not in str(told.value)
    with override_settings(SECRET_KEY="another"), keys(second):
        assert opened() == VALUE  # SECRET_KEY may change once there are keys of their own
    with override_settings(SECRET_KEY="another"), pytest.raises(CommandError):
        call_command("secret", "reseal", reason="a new key", stdout=io.StringIO())


@pytest.mark.rule("Q13")
def test_no_line_of_the_servers_log_carries_it(
    tenant: Caller, runner: RunnerCaller, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("django.db.backends").setLevel(logging.INFO)
    put(tenant)
    run = submit(tenant)
    [given] = runner.claimed()
    runner.post("/runner/starts", {"runs": [named(given)]})
    runner.log(given, 0, VALUE.encode())
    tenant.put("/secrets/TOKEN", {"value": VALUE, "more": VALUE})
    assert VALUE not in caplog.text
    assert read_log(run).data == b"*" * len(VALUE)


@pytest.mark.rule("O2")
def test_operators_need_the_permission(tenant: Caller, make_operator: Any) -> None:
    path = f"/secrets/TOKEN?tenant={tenant.tenant.slug}"
    viewer = make_operator("runners.view_secret")
    assert viewer.put(path, {"value": VALUE}).status_code == 403
    manager = make_operator("runners.manage_secret", "runners.view_secret")
    assert manager.put("/secrets/TOKEN", {"value": VALUE}).status_code == 400  # whose?
    assert manager.put(path, {"value": VALUE, "reason": "they asked"}).status_code == 201
    assert [one["name"] for one in viewer.get("/secrets").json()["results"]] == ["TOKEN"]
    assert manager.delete(f"{path}&reason=unused").status_code == 204


@pytest.mark.rule("O2")
def test_by_manage_py(tenant: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(VALUE + "\n"))
    slug, out = tenant.tenant.slug, io.StringIO()
    call_command("secret", "set", tenant=slug, name="TOKEN", reason="new", stdout=out)
    call_command("secret", "list", tenant=slug, json=True, stdout=out)
    assert VALUE not in out.getvalue()
    assert unseal(tenant.tenant.pk, "TOKEN", bytes(Secret.objects.get().value)) == VALUE
    call_command("secret", "delete", tenant=slug, name="TOKEN", reason="old", stdout=out)
    assert not Secret.objects.exists()


@pytest.mark.rule("Q13")
@pytest.mark.django_db(transaction=True)
def test_two_set_the_same_name_at_once(connect: Any) -> None:
    tenant = ledger.make_tenant()
    gate: psycopg.Connection[Any] = connect()
    gate.execute("SELECT id FROM admission_tenant WHERE id = %s FOR UPDATE", (tenant.pk,))
    calls = [
        ledger.Concurrent(secrets.set_secret, tenant, "TOKEN", value, actor=SYSTEM) for value in (VALUE, VALUE[::-1])
    ]
    with ledger.connected() as observer:
        for call in calls:
            ledger.until_waiting(observer, call)
    gate.commit()
    assert sorted(call.result() for call in calls) == [False, True]
    assert Secret.objects.count() == 1
