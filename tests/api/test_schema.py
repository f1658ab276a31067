"""The OpenAPI document: valid, complete, served."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

from tests import ledger
from tests.api.conftest import Caller

PINNED = [
    "/runs", "/runs/{run}", "/runs/{run}/cancel", "/runs/{run}/logs", "/runs/{run}/why", "/batches", "/tenants",
    "/tenants/{slug}/quota", "/permits", "/permits/{permit}", "/permits/{permit}/renew", "/replicas",
    "/runners/enrol", "/runner/claims", "/runner/runs/{run}/start", "/runner/runs/{run}/heartbeat",
    "/runner/runs/{run}/logs", "/runner/runs/{run}/result",
    "/runner/runs/{run}/artifacts", "/runs/{run}/artifacts", "/runner/starts", "/runner/heartbeats", "/runner/results",
]  # fmt: skip


@pytest.fixture
def schema(client: Any) -> dict[str, Any]:
    answer = client.get("/api/schema/", headers={"accept": "application/vnd.oai.openapi+json"})
    assert answer.status_code == 200
    return dict(answer.json())


@pytest.mark.rule("O3")
def test_it_is_valid_and_without_warnings(tmp_path: Any) -> None:
    call_command("spectacular", validate=True, fail_on_warn=True, file=str(tmp_path / "schema.yaml"))


@pytest.mark.rule("X3")
def test_it_has_every_pinned_path(schema: dict[str, Any]) -> None:
    assert {f"/api/v1{path}" for path in PINNED} <= set(schema["paths"])


def test_every_operation_says_how_it_fails_and_who_may_call(schema: dict[str, Any]) -> None:
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            content = operation["responses"]["default"]["content"]
            assert "application/problem+json" in content, (path, method)
            scheme = "runner" if path.startswith("/api/v1/runner/") or path == "/api/v1/runner" else "token"
            if path != "/api/v1/runners/enrol":
                assert operation["security"] == [{scheme: []}], (path, method)


def test_the_run_specification_is_a_component(schema: dict[str, Any]) -> None:
    spec = schema["components"]["schemas"]["RunSpec"]
    assert "command" in spec["required"]
    assert {"image", "resources", "retry", "secrets", "concurrency_key"} <= set(spec["properties"])


def test_the_page_for_people_needs_no_other_server(client: Any) -> None:
    page = client.get("/api/docs/").content.decode()
    assert "swagger-ui" in page
    assert "cdn" not in page


@pytest.mark.django_db
def test_replicas_are_listed_with_their_age(operator: Caller) -> None:
    ledger.make_replica(name="one")
    shown = operator.get("/replicas").json()["results"][0]
    assert (shown["name"], shown["state"]) == ("one", "live")
    assert 0 <= shown["beat_age_seconds"] < 60
    with connection.cursor() as cursor:
        cursor.execute("UPDATE recovery_replica SET beat_at = beat_at - interval '1 hour'")
    assert operator.get("/replicas").json()["results"][0]["state"] == "silent", "as the admin and the metrics say"
