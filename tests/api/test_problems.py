"""Whatever is sent, the answer is a problem document with a status below 500."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
from django.db import OperationalError

from tests import ledger
from tests.api.conftest import Caller
from tests.runners.conftest import make_runner

pytestmark = pytest.mark.django_db

DEEP = "[" * 100_000
BODIES = [
    "",
    "nonsense",
    "[]",
    "null",
    '"text"',
    "12",
    "{",
    DEEP,
    "[" * 900 + "]" * 900,
    '{"command": ["a\\u0000b"]}',
    '{"command": ["a\\ud800b"]}',
    '{"command": ["x"], "weight": ' + "9" * 5000 + "}",
    '{"command": ["x"], "weight": 99999999999}',
    '{"command": ["x"], "weight": 1.5}',
    '{"command": ["x"], "priority": -1e309}',
    '{"command": ["x"], "timeout_seconds": NaN}',
    '{"command": ["x"], "timeout_seconds": 1e999}',
    '{"command": ["x"], "metadata": {"a": Infinity}}',
    '{"command": ["x"], "metadata": {"a": ' + "[" * 900 + "]" * 900 + "}}",
    '{"command": ["x"], "metadata": {"a\\u0000": 1}}',
    '{"command": ["x"], "not_before": "0000-99-99"}',
    '{"command": "x"}',
    '{"command": []}',
    '{"command": ["x"], "env": {"a b": "c"}}',
    '{"command": ["x"], "files": {"../up": {"text": "x"}}}',
    '{"command": ["x"], "files": {"a": {"base64": "!"}}}',
    '{"command": ["x"], "unknown": 1}',
]


def assert_problem(answer: Any) -> dict[str, Any]:
    assert 400 <= answer.status_code < 500, answer.content[:500]
    assert answer["Content-Type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == answer.status_code
    assert {"type", "title", "detail", "code", "request_id"} <= set(problem)
    assert problem["request_id"] == answer["X-Request-ID"]
    assert "Traceback" not in answer.content.decode()
    return dict(problem)


@pytest.mark.rule("O3")
@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
@pytest.mark.parametrize("path", ["/runs", "/batches", "/permits"])
def test_wrong_bodies_are_refused(tenant: Caller, path: str, body: str) -> None:
    assert_problem(tenant.post(path, body))


@pytest.mark.parametrize("body", [body.encode("utf-16") for body in BODIES[9:11]] + [b"\xff\xfe{}", b'{"a": "\x00"}'])
def test_bytes_that_are_no_utf8_are_refused(tenant: Caller, body: bytes) -> None:
    assert_problem(tenant.post("/runs", body))


def test_a_backslash_before_u0000_is_text(tenant: Caller) -> None:
    assert tenant.post("/permits", '{"id": "x", "weight": 1}').status_code == 201
    assert tenant.post("/runs", '{"command": ["\\\\u0041"]}').status_code == 201


@pytest.mark.parametrize(
    "query",
    [
        "state=nonsense",
        "name=%00",
        "batch_name=%00",
        "tenant=%00",
        "batch=0",
        "batch=99999999999999999999",
        "batch=x",
        "cursor=-1",
        "cursor=99999999999999999999",
        "cursor=x",
        "limit=0",
        "limit=501",
        "limit=x",
        "kind=%F0%9F%98%80",
    ],
)
def test_wrong_filters_are_refused(tenant: Caller, query: str) -> None:
    problem = assert_problem(tenant.get(f"/runs?{query}"))
    assert problem["errors"][0]["field"] == query.partition("=")[0]


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/runs/0",
        "/runs/999999999999999999",
        "/runs/9999999999999999999999",
        "/runs/x",
        "/runs/1/nothing",
        "/batches/1",
        "/tenants/%00",
        "/tenants/other",
        "/tenants/other/quota",
    ],
)
def test_what_is_not_there_is_404(tenant: Caller, path: str) -> None:
    answer = tenant.get(path)
    assert answer.status_code == 404
    assert_problem(answer)


def test_other_content_and_other_methods(tenant: Caller) -> None:
    assert tenant.post("/runs", "<run/>", content_type="application/xml").status_code == 415
    assert tenant.post("/runs", "a=b", content_type="application/x-www-form-urlencoded").status_code == 415
    assert_problem(tenant.delete("/runs"))
    assert tenant.delete("/runs").status_code == 405
    assert_problem(tenant.get("/runs", accept="application/xml"))


def test_every_path_says_which_methods_it_has_and_fails_for_none(tenant: Caller, operator: Caller) -> None:
    paths = tenant._client.get("/api/schema/?format=json").json()["paths"]
    assert len(paths) > 40
    runner = make_runner()
    for path, operations in paths.items():
        address = re.sub(r"{[^}]*}", "1", path)
        for caller in (tenant, operator, runner):
            answer = caller._client.options(address)
            assert answer.status_code in {200, 401}, (address, answer.content)
            if answer.status_code == 200:
                assert {name.upper() for name in operations} <= set(answer.json()["methods"])


def test_a_body_beyond_the_limit_is_413_and_is_not_read(tenant: Caller) -> None:
    answer = tenant.post("/runs", '{"command": ["' + "x" * (5 << 20) + '"]}')
    assert answer.status_code == 413
    assert assert_problem(answer)["code"] == "body_too_large"


def test_an_outage_of_the_database_is_503(tenant: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    def down(*_: object, **__: object) -> None:
        raise OperationalError("connection to server at 10.0.0.1, password=hunter2 failed")

    monkeypatch.setattr("admission.api.permits.service.claim_permit", down)
    answer = tenant.post("/permits", {"id": "x"})
    assert answer.status_code == 503
    assert answer["Retry-After"] == "2"
    assert "hunter2" not in answer.content.decode()


def test_a_fault_is_a_logged_500_without_its_stack(
    tenant: Caller, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("secret-value")

    monkeypatch.setattr("admission.api.permits.service.claim_permit", broken)
    with caplog.at_level(logging.ERROR):
        answer = tenant.post("/permits", {"id": "x"})
    assert answer.status_code == 500
    assert answer["Content-Type"] == "application/problem+json"
    assert "secret-value" not in answer.content.decode()
    assert any("ZeroDivisionError" in str(record.exc_info) for record in caplog.records)


def test_a_callers_request_id_comes_back(tenant: Caller) -> None:
    answer = tenant.get("/runs/1", **{"X-Request-ID": "mine-1"})
    assert answer.json()["request_id"] == answer["X-Request-ID"] == "mine-1"
    forged = tenant.get("/runs/1", **{"X-Request-ID": "a b<script>"})
    assert forged["X-Request-ID"] != "a b<script>"


def test_the_error_never_repeats_a_value_that_may_be_secret(tenant: Caller) -> None:
    answer = tenant.post("/runs", {"command": ["x"], "env": {"PASSWORD": ["hunter2"]}})
    assert "hunter2" not in answer.content.decode()
    assert_problem(answer)


def test_a_run_after_all_that(tenant: Caller) -> None:
    assert len(ledger.submit(tenant.tenant)) == 1
