"""Output that comes after the end, compressed, or never (rule Q8)."""

from __future__ import annotations

import gzip
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from admission.models import Attempt
from admission.services.sweeps import release_delayed
from controlplane.core.conf import conf
from runners.api.appending import MAX_CHUNK_BYTES
from runners.models import LogEnd
from runners.services.retention import delete_expired
from tests import ledger
from tests.api.conftest import Caller
from tests.runners.conftest import RunnerCaller, named
from tests.runners.test_logs import stored

pytestmark = [pytest.mark.django_db, pytest.mark.rule("Q8")]


@pytest.fixture
def given(runner: RunnerCaller, tenant: Caller) -> dict[str, Any]:
    """One run that was started."""
    ledger.submit(tenant.tenant)
    assignment = runner.claimed()[0]
    runner.job(assignment, "start")
    return assignment


def end(runner: RunnerCaller, given: dict[str, Any], **fields: Any) -> None:
    assert runner.job(given, "result", ending="failed", exit_code=1, **fields).status_code == 200


def zipped(runner: RunnerCaller, given: dict[str, Any], data: bytes, encoding: str = "gzip") -> Any:
    path = f"/runner/runs/{given['run']}/logs?epoch={given['epoch']}&offset=0"
    headers = {"Job-Token": given["job_token"], "Content-Encoding": encoding}
    return runner.post(path, data, content_type="application/octet-stream", **headers)


def test_the_rest_of_a_log_is_taken_for_ten_minutes_after_its_end(runner: RunnerCaller, given: dict[str, Any]) -> None:
    runner.log(given, 0, b"one\n")
    end(runner, given)
    late = runner.log(given, 4, b"two\n")
    assert (late.status_code, late.json()["stored"], late.json()["verdict"]) == (200, 8, "ok")
    assert runner.log(given, 4, b"two\n").status_code == 416
    assert stored(given["run"]) == b"one\ntwo\n"
    assert conf().late_log_seconds == 600
    Attempt.objects.update(released_at=timezone.now() - timedelta(seconds=601))
    assert runner.log(given, 8, b"three\n").json()["code"] == "superseded"
    assert stored(given["run"]) == b"one\ntwo\n"


@pytest.mark.rule("Q6")
def test_who_had_the_run_taken_away_adds_nothing_late(runner: RunnerCaller, given: dict[str, Any]) -> None:
    runner.log(given, 0, b"one\n")
    runner.post("/runner/results", {"results": [named(given, ending="returned", reason="drained")]})
    again = runner.claimed("again")[0]
    assert again["run"] == given["run"]
    assert runner.log(given, 4, b"two\n").status_code == 409
    assert stored(given["run"]) == b"one\n"


def test_late_output_of_a_failed_attempt_is_added_to_that_attempt_alone(runner: RunnerCaller, tenant: Caller) -> None:
    ledger.submit(tenant.tenant, retry={"on_failure": "retry", "backoff_seconds": 0})
    first = runner.claimed()[0]
    runner.job(first, "start")
    runner.log(first, 0, b"first ")
    end(runner, first)
    assert release_delayed().counts == {"delayed": 1}
    second = runner.claimed("second")[0]
    runner.job(second, "start")
    runner.log(second, 0, b"second")
    assert runner.log(first, 6, b"late").status_code == 200
    logs = [tenant.get(f"/runs/{first['run']}/logs?attempt={n}").content for n in (1, 2)]
    assert logs == [b"first late", b"second"]


def test_what_could_not_be_delivered_is_shown_until_it_came(
    runner: RunnerCaller, given: dict[str, Any], tenant: Caller
) -> None:
    def shown() -> tuple[str, str]:
        answer = tenant.get(f"/runs/{given['run']}/logs")
        return answer["Log-Missing"], answer["Log-Finished"]

    runner.log(given, 0, b"one\n")
    end(runner, given, log_end=10)
    assert shown() == ("6", "false")
    runner.log(given, 4, b"two\n")
    assert shown() == ("2", "false")
    Attempt.objects.update(released_at=timezone.now() - timedelta(seconds=601))
    assert shown() == ("2", "true")


def test_a_log_that_came_whole_misses_nothing(runner: RunnerCaller, given: dict[str, Any], tenant: Caller) -> None:
    runner.log(given, 0, b"one\n")
    end(runner, given, log_end=8)
    end(runner, given, log_end=8)
    runner.log(given, 4, b"two\n")
    answer = tenant.get(f"/runs/{given['run']}/logs")
    assert (answer["Log-Missing"], answer["Log-Finished"]) == ("0", "true")


def test_ends_of_logs_go_with_their_runs(runner: RunnerCaller, given: dict[str, Any]) -> None:
    end(runner, given, log_end=8)
    LogEnd.objects.create(run_id=10**9, attempt=1, size=3)
    assert delete_expired().counts["log_ends"] == 1
    assert [row.run_id for row in LogEnd.objects.all()] == [given["run"]]


def test_gzipped_output_is_stored_expanded(runner: RunnerCaller, given: dict[str, Any]) -> None:
    data = b"line\n" * 1000
    answer = zipped(runner, given, gzip.compress(data))
    assert (answer.status_code, answer.json()["stored"]) == (200, len(data))
    assert stored(given["run"]) == data


@pytest.mark.parametrize(
    ("body", "status"),
    [
        pytest.param(gzip.compress(b"\0" * (64 * MAX_CHUNK_BYTES)), 413, id="bomb"),
        pytest.param(gzip.compress(b"\0" * (MAX_CHUNK_BYTES + 1)), 413, id="one byte more"),
        pytest.param(gzip.compress(b"\0" * MAX_CHUNK_BYTES), 200, id="just fits"),
        pytest.param(gzip.compress(b"abc")[:-1], 400, id="cut"),
        pytest.param(gzip.compress(b"abc") + b"x", 400, id="something behind"),
        pytest.param(gzip.compress(b"abc") * 2, 400, id="two members"),
        pytest.param(b"plain", 400, id="plain"),
        pytest.param(b"x" * (MAX_CHUNK_BYTES + 1), 413, id="too large as sent"),
    ],
)
def test_a_body_is_bounded_expanded_too(runner: RunnerCaller, given: dict[str, Any], body: bytes, status: int) -> None:
    assert zipped(runner, given, body).status_code == status
    if status != 200:
        assert stored(given["run"]) == b""


def test_another_encoding_is_refused(runner: RunnerCaller, given: dict[str, Any]) -> None:
    assert zipped(runner, given, b"abc", "br").status_code == 415
    assert zipped(runner, given, b"abc", "identity").status_code == 200
