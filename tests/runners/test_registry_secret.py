"""The secret for an image's registry: given with the claim, to no environment, hidden in every part (P17, Q13)."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from admission.spec import parse_spec
from runners.agent.assignment import Assignment, Capacity
from runners.agent.environment import run_environment
from runners.database_control import DatabaseControl
from runners.services.hiding import maskers
from runners.services.logs import append_log, read_log
from tests import ledger
from tests.api.conftest import Caller
from tests.runners.conftest import RunnerCaller, named

pytestmark = pytest.mark.rule("Q13", "P17")
PASSWORD = "hunter2-and-more"
PAIR = f"puller:{PASSWORD}"


@pytest.fixture(autouse=True)
def _read_anew() -> None:
    maskers.forget()


def submit(tenant: Caller, **spec: Any) -> int:
    assert tenant.put("/secrets/PULL", {"value": PAIR}).status_code in {200, 201}
    return ledger.submit(tenant.tenant, registry_secret="PULL", **spec)[0]


def replica() -> DatabaseControl:
    return DatabaseControl(ledger.make_driver())


def test_a_run_that_names_an_unknown_one_is_refused_by_that_field(tenant: Caller) -> None:
    refused = tenant.post("/runs", {"command": ["true"], "registry_secret": "PULL"})
    assert refused.status_code == 400
    assert [error["field"] for error in refused.json()["errors"]] == ["registry_secret"]
    wrong = tenant.post("/runs", {"command": ["true"], "registry_secret": PAIR})
    assert wrong.status_code == 400
    assert "registry_secret" in wrong.content.decode()


def test_only_the_accepted_claim_carries_it_and_no_environment_has_it(tenant: Caller, runner: RunnerCaller) -> None:
    tenant.put("/secrets/TOKEN", {"value": "of-the-environment"})
    run = submit(tenant, secrets=["TOKEN"])
    [given] = runner.claimed("once")
    assert given["secrets"] == {"TOKEN": "of-the-environment", "PULL": PAIR}
    others = [
        runner.get("/runner/holds"),
        runner.post("/runner/starts", {"runs": [named(given)]}),
        tenant.get("/runs"),
        tenant.get(f"/runs/{run}"),
        tenant.get(f"/runs/{run}/why"),
        tenant.get("/secrets"),
    ]
    assert all(answer.status_code == 200 for answer in others)
    assert not [answer for answer in others if PASSWORD in answer.content.decode()]
    # As an agent reads the answer:
    held = Assignment(run, 1, 1, "t", parse_spec(given["spec"])).given(given["secrets"])
    assert held.registry == PAIR
    assert PASSWORD not in repr(held)
    environment = run_environment(held, "/work")
    assert environment["TOKEN"] == "of-the-environment"
    assert PASSWORD not in repr(environment)
    assert "PULL" not in environment


def test_a_replica_is_given_it_too(tenant: Caller) -> None:
    submit(tenant)
    [given] = replica().claim("r", Capacity(slots=1))
    assert (given.registry, given.secrets) == (PAIR, {})


def test_a_run_whose_registry_secret_was_deleted_is_set_aside_and_the_next_is_served(tenant: Caller) -> None:
    broken, sound = submit(tenant), ledger.submit(tenant.tenant)[0]
    assert tenant.delete("/secrets/PULL").status_code == 204
    assert [one.run for one in replica().claim("r", Capacity(slots=5))] == [sound]
    assert "there is no secret 'PULL'" in ledger.run(broken).detail
    ledger.assert_conserved()


def test_neither_the_pair_nor_the_password_nor_what_is_sent_can_be_read_in_output_and_messages(
    tenant: Caller, runner: RunnerCaller
) -> None:
    submit(tenant)
    [given] = runner.claimed()
    runner.post("/runner/starts", {"runs": [named(given)]})
    told = f"{PAIR} {PASSWORD} {base64.b64encode(PAIR.encode()).decode()}"
    runner.post("/runner/results", {"results": [named(given, ending="failed", detail=f"pull: {told}")]})
    row = ledger.run(given["run"])
    submit(tenant)
    driver = ledger.make_driver()
    [admitted] = ledger.admit_all(driver)
    ledger.start(driver, [admitted])
    append_log(driver, admitted.run, admitted.epoch, 0, told.encode())
    for text in (row.detail, read_log(admitted.run).data.decode()):
        assert "pull" in text or "*" in text
        assert PASSWORD not in text
        assert base64.b64encode(PAIR.encode()).decode() not in text
