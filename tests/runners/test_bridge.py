"""Everything but the claims that wait: the WSGI application behind the web server's own interface."""

from __future__ import annotations

import hashlib
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import django
import pytest

from tests import ledger
from tests.api.conftest import tenant_caller
from tests.runners.conftest import make_runner
from tests.runners.web import Web


@pytest.fixture
def call(web: Web, transactional_db: None) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=30)
    yield connection
    connection.close()


def read(call: http.client.HTTPConnection) -> tuple[int, bytes, http.client.HTTPMessage]:
    response = call.getresponse()
    return response.status, response.read(), response.headers


@pytest.mark.rule("O3")
def test_a_body_larger_than_what_the_loop_reads(call: http.client.HTTPConnection) -> None:
    tenant = tenant_caller()
    specs = [{"spec": {"command": ["true"], "env": {"PAD": "x" * 3000}}} for _ in range(500)]
    body = json.dumps({"name": "large", "runs": specs})
    assert len(body) > 1 << 20
    headers = {"Authorization": f"Bearer {tenant.token}", "Content-Type": "application/json"}
    call.request("POST", "/api/v1/batches", body, headers)
    status, answer, _ = read(call)
    assert (status, json.loads(answer)["created"]) == (200, 500)
    call.request("GET", "/api/v1/runs?limit=1", headers=headers)
    status, answer, _ = read(call)
    assert (status, len(json.loads(answer)["results"])) == (200, 1)


@pytest.mark.rule("Q8")
def test_a_body_of_unknown_length(call: http.client.HTTPConnection) -> None:
    runner = make_runner()
    ledger.submit(ledger.make_tenant())
    given = runner.claimed()[0]
    runner.job(given, "start")
    headers = {
        "Authorization": f"Bearer {runner.token}",
        "Job-Token": given["job_token"],
        "Content-Type": "application/octet-stream",
    }
    path = f"/api/v1/runner/runs/{given['run']}/logs?epoch={given['epoch']}&offset=0"
    call.request("POST", path, iter([b"one ", b"two ", b"three"]), headers, encode_chunked=True)
    status, answer, _ = read(call)
    assert (status, json.loads(answer)["stored"]) == (200, 13)
    call.request("POST", path, iter([b"x" * 65_536] * 20), headers, encode_chunked=True)
    assert read(call)[0] == 411


def test_a_large_body_is_not_waited_for_before_it_is_wanted(call: http.client.HTTPConnection) -> None:
    """Else whoever has no token could fill the memory."""
    call.putrequest("POST", "/api/v1/batches")
    call.putheader("Content-Type", "application/json")
    call.putheader("Content-Length", str(100 << 20))
    call.endheaders()
    assert call.sock is not None
    call.sock.settimeout(10)
    assert call.getresponse().status == 401


@pytest.mark.rule("Q8")
def test_names_of_any_language_and_a_large_file_there_and_back(call: http.client.HTTPConnection) -> None:
    runner, tenant = make_runner(), tenant_caller()
    run = ledger.submit(tenant.tenant)[0]
    given = runner.claimed()[0]
    runner.job(given, "start")
    data, name = bytes(range(256)) * 10_000, "größe/a b%2F+.bin"
    headers = {
        "Authorization": f"Bearer {runner.token}",
        "Job-Token": given["job_token"],
        "Artifact-Sha256": hashlib.sha256(data).hexdigest(),
    }
    query = urlencode({"epoch": given["epoch"], "name": name})
    call.request("POST", f"/api/v1/runner/runs/{run}/artifacts?{query}", data, headers)
    assert read(call)[0] == 200
    path, token = f"/api/v1/runs/{run}/artifacts/{quote(name)}", {"Authorization": f"Bearer {tenant.token}"}
    call.request("GET", path, headers=token)
    status, answer, answered = read(call)
    assert (status, answer, answered["Content-Length"]) == (200, data, str(len(data)))
    call.request("GET", path, headers={**token, "Range": "bytes=256-511"})
    assert read(call)[:2] == (206, bytes(range(256)))
    call.request("HEAD", path, headers=token)
    assert read(call)[:2] == (200, b"")


@pytest.mark.rule("Q2")
def test_a_header_with_an_underscore_is_none_with_a_dash(call: http.client.HTTPConnection) -> None:
    runner = make_runner()
    ledger.submit(ledger.make_tenant())
    given = runner.claimed()[0]
    path, body = f"/api/v1/runner/runs/{given['run']}/start", json.dumps({"epoch": given["epoch"]})
    for header, status in (("Job_Token", 401), ("Job-Token", 200)):
        headers = {"Authorization": f"Bearer {runner.token}", "Content-Type": "application/json"}
        call.request("POST", path, body, {**headers, header: given["job_token"]})
        assert read(call)[0] == status


def test_an_answer_that_is_streamed(call: http.client.HTTPConnection) -> None:
    call.request("GET", "/static/admin/css/base.css")
    status, answer, headers = read(call)
    source = Path(django.__file__).parent / "contrib/admin/static/admin/css/base.css"
    assert (status, answer) == (200, source.read_bytes())
    assert headers["Content-Type"].startswith("text/css")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("HEAD", "/livez", 200),
        ("GET", "/admin/login/?next=/admin/", 200),
        ("GET", "/api/v1/no%20such%2Fpl%C3%A4ce", 404),
        ("DELETE", "/api/v1/runner/claims", 405),
        ("OPTIONS", "/api/v1/runs", 401),
    ],
)
def test_methods_and_paths(call: http.client.HTTPConnection, method: str, path: str, status: int) -> None:
    headers = {"Authorization": f"Bearer {make_runner().token}"} if "claims" in path else {}
    call.request(method, path, headers=headers)
    found, body, answered = read(call)
    assert found == status
    assert (not body) is (method == "HEAD")
    assert answered["X-Request-ID"]


def test_many_at_once_answer_all(web: Web, transactional_db: None) -> None:
    calls: list[Any] = [http.client.HTTPConnection("127.0.0.1", web.port, timeout=30) for _ in range(40)]
    for one in calls:
        one.request("GET", "/readyz")
    assert {read(one)[0] for one in calls} == {200}
    for one in calls:
        one.close()
