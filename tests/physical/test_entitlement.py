"""The cap comes from the server's environment, and hosted is told by the presence of the secret alone."""

from __future__ import annotations

import pytest

from admission.physical.entitlement import Entitlement, EntitlementRefused, Unrestricted, resolve

HOSTED = {
    "CONTROLPLANE_FLEET_SECRET": "s",
    "CONTROLPLANE_INSTANCE_ID": "acme",
    "CONTROLPLANE_WORKER_CONCURRENCY": "6",
}
SELF_HOSTED = {"CONTROLPLANE_RUN_LIMIT": "3", "CONTROLPLANE_INSTANCE_ID": "acme"}


def refusal(environment: dict[str, str]) -> str:
    found = resolve(environment)
    assert isinstance(found, EntitlementRefused), found
    return found.message


@pytest.mark.rule("P1")
@pytest.mark.parametrize("tier", [2, 6, 12])
def test_hosted_tiers(tier: int) -> None:
    found = resolve({**HOSTED, "CONTROLPLANE_WORKER_CONCURRENCY": str(tier)})
    assert found == Entitlement("acme", tier, 0, hosted=True)


@pytest.mark.rule("P3")
@pytest.mark.parametrize("secret", ["", " ", "short", "\x00", "a proper secret of forty characters or so"])
def test_a_malformed_secret_marks_hosted_too(secret: str) -> None:
    environment = {**HOSTED, "CONTROLPLANE_FLEET_SECRET": secret, "CONTROLPLANE_RUN_LIMIT": "500"}
    assert resolve(environment) == Entitlement("acme", 6, 0, hosted=True), "the self-hosted override is ignored"
    del environment["CONTROLPLANE_WORKER_CONCURRENCY"]
    assert "2 (Solo), 6 (Team), 12 (Scale)" in refusal(environment)


@pytest.mark.rule("P3")
@pytest.mark.parametrize("tier", ["", "0", "1", "3", "06", "6.0", "-6", "six", "13", "1000"])
def test_hosted_without_a_known_tier_is_refused(tier: str) -> None:
    assert "CONTROLPLANE_WORKER_CONCURRENCY" in refusal({**HOSTED, "CONTROLPLANE_WORKER_CONCURRENCY": tier})


@pytest.mark.rule("P3")
def test_everything_that_is_missing_is_said_at_once() -> None:
    message = refusal({"CONTROLPLANE_FLEET_SECRET": "s", "CONTROLPLANE_RUN_GENERATION": "x"})
    for name in ("CONTROLPLANE_INSTANCE_ID", "CONTROLPLANE_WORKER_CONCURRENCY", "CONTROLPLANE_RUN_GENERATION"):
        assert name in message


@pytest.mark.rule("P3")
@pytest.mark.parametrize("extra", [{}, {"CONTROLPLANE_INSTANCE_ID": "acme"}, {"CONTROLPLANE_WORKER_CONCURRENCY": "6"}])
def test_self_hosted_is_unrestricted_unless_a_limit_is_set(extra: dict[str, str]) -> None:
    assert resolve(extra) == Unrestricted()
    assert resolve({**extra, "CONTROLPLANE_RUN_LIMIT": ""}) == Unrestricted()


@pytest.mark.rule("P3")
def test_self_hosted_limit() -> None:
    assert resolve(SELF_HOSTED) == Entitlement("acme", 3, 0, hosted=False)
    message = refusal({"CONTROLPLANE_RUN_LIMIT": "3"})
    assert "CONTROLPLANE_INSTANCE_ID is missing" in message
    assert "CONTROLPLANE_RUN_LIMIT is set" in message


@pytest.mark.rule("P3")
@pytest.mark.parametrize("limit", ["0", "-1", "1.5", "many", " 3", "٣", "10001", "1e3"])
def test_a_limit_that_is_no_positive_whole_number_is_refused_not_lifted(limit: str) -> None:
    assert "CONTROLPLANE_RUN_LIMIT" in refusal({**SELF_HOSTED, "CONTROLPLANE_RUN_LIMIT": limit})


@pytest.mark.rule("P3")
@pytest.mark.parametrize(("text", "generation"), [("", 0), ("0", 0), ("7", 7), ("1000000000000", 10**12)])
def test_an_absent_generation_is_generation_0(text: str, generation: int) -> None:
    found = resolve({**HOSTED, "CONTROLPLANE_RUN_GENERATION": text})
    assert isinstance(found, Entitlement)
    assert found.generation == generation


@pytest.mark.parametrize("generation", ["-1", "1.0", "first", "1000000000001", "01"])
def test_a_generation_that_is_no_whole_number_is_refused(generation: str) -> None:
    assert "CONTROLPLANE_RUN_GENERATION" in refusal({**HOSTED, "CONTROLPLANE_RUN_GENERATION": generation})


@pytest.mark.parametrize("instance", ["", " acme", "acme ", "ac\nme", "ü", "x" * 201])
def test_an_instance_id_that_processes_might_read_differently_is_refused(instance: str) -> None:
    assert "CONTROLPLANE_INSTANCE_ID" in refusal({**HOSTED, "CONTROLPLANE_INSTANCE_ID": instance})
