"""Logs: appended at the offset, cut at the cap, read in parts."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import override_settings

from runners.models import ClaimRequest, LogChunk
from runners.services.logs import OffsetMismatch, append_log, cut_mark
from runners.services.retention import delete_expired
from tests import ledger
from tests.api.conftest import Caller
from tests.runners.conftest import RunnerCaller, make_runner, named

pytestmark = pytest.mark.django_db


@pytest.fixture
def given(runner: RunnerCaller, tenant: Caller) -> dict[str, Any]:
    """One run that was started."""
    ledger.submit(tenant.tenant)
    assignment = runner.claimed()[0]
    runner.job(assignment, "start")
    return assignment


def stored(run: int) -> bytes:
    return b"".join(bytes(c.data) for c in LogChunk.objects.filter(run_id=run).order_by("attempt", "start"))


@pytest.mark.rule("Q8")
def test_appending_says_how_much_is_stored(runner: RunnerCaller, given: dict[str, Any]) -> None:
    assert runner.log(given, 0, b"one\n").json()["stored"] == 4
    assert runner.log(given, 4, b"two\n").json()["stored"] == 8
    assert stored(given["run"]) == b"one\ntwo\n"


@pytest.mark.rule("Q8")
@pytest.mark.parametrize("offset", [0, 3, 5, 10**17])
def test_another_offset_is_416_and_says_where_to_go_on(
    runner: RunnerCaller, given: dict[str, Any], offset: int
) -> None:
    runner.log(given, 0, b"one\n")
    answer = runner.log(given, offset, b"x")
    assert (answer.status_code, answer.json()["stored"]) == (416, 4)
    assert stored(given["run"]) == b"one\n"


@pytest.mark.rule("Q8")
@pytest.mark.django_db(transaction=True)
def test_of_two_appends_at_once_one_is_stored(connect: Any) -> None:
    made = ledger.make_tenant()
    ledger.submit(made)
    runner = make_runner()
    given = runner.claimed()[0]
    gate = connect()
    gate.execute("SELECT id FROM admission_attempt WHERE run_id = %s FOR UPDATE", (given["run"],))
    arguments = (runner.driver, given["run"], given["epoch"], 0)
    calls = [ledger.Concurrent(append_log, *arguments, data) for data in (b"aaa", b"bbb")]
    for call in calls:
        ledger.until_waiting(gate, call)
    gate.rollback()
    outcomes = []
    for call in calls:
        try:
            outcomes.append(call.result().stored)
        except OffsetMismatch as error:
            outcomes.append(-error.stored)
    assert sorted(outcomes) == [-3, 3]
    assert stored(given["run"]) in (b"aaa", b"bbb")


@pytest.mark.rule("Q8")
def test_at_the_cap_the_rest_is_cut_visibly_and_once(
    runner: RunnerCaller, given: dict[str, Any], tenant: Caller
) -> None:
    with override_settings(CONTROLPLANE={"log_cap_bytes": 10}):
        assert runner.log(given, 0, b"12345678").json()["stored"] == 8
        assert runner.log(given, 8, b"90abcdef").json()["stored"] >= 16
        # A sender that goes on is told that all of it was taken, or it would offer the rest for ever.
        assert runner.log(given, 500, b"more").json()["stored"] == 504
        assert runner.log(given, 0, b"12345678").json()["stored"] >= 10
    assert stored(given["run"]) == b"1234567890" + cut_mark(10)
    answer = tenant.get(f"/runs/{given['run']}/logs")
    assert answer["Log-Truncated"] == "true"
    assert int(answer["Log-Size"]) == len(answer.content)


def test_a_log_that_fits_exactly_is_not_cut(runner: RunnerCaller, given: dict[str, Any]) -> None:
    with override_settings(CONTROLPLANE={"log_cap_bytes": 4}):
        assert runner.log(given, 0, b"1234").json()["stored"] == 4
    assert stored(given["run"]) == b"1234"
    assert ledger.attempts(given["run"])[0].log_truncated is False


@pytest.mark.rule("Q6")
def test_a_superseded_holder_appends_nothing(runner: RunnerCaller, given: dict[str, Any]) -> None:
    runner.log(given, 0, b"one\n")
    runner.post("/runner/results", {"results": [named(given, ending="returned", reason="lost")]})
    answer = runner.log(given, 4, b"two\n")
    assert (answer.status_code, answer.json()["code"]) == (409, "superseded")
    assert stored(given["run"]) == b"one\n"


def test_wrong_appends_are_refused(runner: RunnerCaller, given: dict[str, Any]) -> None:
    assert runner.log({**given, "epoch": given["epoch"] + 1}, 0, b"x").status_code == 401
    assert runner.log({**given, "job_token": ""}, 0, b"x").status_code == 401
    assert runner.job(given, "logs", b"x").status_code == 400
    assert runner.job(given, f"logs?epoch={given['epoch']}&offset=-1", b"x").status_code == 400
    assert runner.job(given, f"logs?epoch={given['epoch']}&offset={10**30}", b"x").status_code == 400
    assert runner.log(given, 0, b"x" * ((1 << 20) + 1)).status_code == 413
    assert runner.log(given, 0, b"").json()["stored"] == 0
    assert stored(given["run"]) == b""


def test_any_bytes_come_back_as_they_were(runner: RunnerCaller, given: dict[str, Any], tenant: Caller) -> None:
    data = bytes(range(256)) * 3
    runner.log(given, 0, data[:300])
    runner.log(given, 300, data[300:])
    answer = tenant.get(f"/runs/{given['run']}/logs")
    assert answer.content == data
    assert answer["Content-Type"].startswith("text/plain")


def test_reading_in_parts(runner: RunnerCaller, given: dict[str, Any], tenant: Caller) -> None:
    for number in range(10):
        runner.log(given, number * 3, b"%03d" % number)
    path = f"/runs/{given['run']}/logs"
    whole = tenant.get(path).content
    assert whole == b"000001002003004005006007008009"
    assert tenant.get(f"{path}?offset=4&limit=4").content == whole[4:8]
    assert tenant.get(f"{path}?offset=30").content == b""
    assert tenant.get(f"{path}?offset=1000").content == b""
    part = tenant.get(path, Range="bytes=5-7")
    assert (part.status_code, part.content, part["Content-Range"]) == (206, whole[5:8], "bytes 5-7/30")
    assert tenant.get(path, Range="bytes=28-").content == whole[28:]
    assert tenant.get(path, Range="bytes=-2").content == whole[28:]
    behind = tenant.get(path, Range="bytes=30-")
    assert (behind.status_code, behind["Content-Range"], behind.json()["size"]) == (416, "bytes */30", 30)
    assert tenant.get(f"{path}?attempt=2").status_code == 404
    assert tenant.get(f"{path}?limit=0").status_code == 400


@pytest.mark.parametrize("asked", ["bytes=10-5", "bytes=a-b", "bytes=0-1,3-4", "lines=0-1", "bytes=-", ""])
def test_a_range_that_is_none_is_ignored(
    runner: RunnerCaller, given: dict[str, Any], tenant: Caller, asked: str
) -> None:
    runner.log(given, 0, b"0123456789abcdef")
    answer = tenant.get(f"/runs/{given['run']}/logs", Range=asked)
    assert (answer.status_code, answer.content) == (200, b"0123456789abcdef")
    assert "Content-Range" not in answer


def test_a_range_of_deleted_output_is_unsatisfiable(
    runner: RunnerCaller, given: dict[str, Any], tenant: Caller
) -> None:
    runner.log(given, 0, b"0123456789")
    LogChunk.objects.all().delete()  # as retention does; the size stays
    path = f"/runs/{given['run']}/logs"
    answer = tenant.get(path, Range="bytes=0-4")
    assert (answer.status_code, answer["Content-Range"]) == (416, "bytes */0")
    assert (tenant.get(path).status_code, tenant.get(path)["Log-Size"]) == (200, "10")


def test_a_follower_learns_when_it_is_over(runner: RunnerCaller, given: dict[str, Any], tenant: Caller) -> None:
    path = f"/runs/{given['run']}/logs"
    runner.log(given, 0, b"one\n")
    going = tenant.get(path)
    assert (going["Log-Finished"], going["Run-State"], going["Log-Attempt"]) == ("false", "running", "1")
    runner.job(given, "result", ending="succeeded", exit_code=0)
    over = tenant.get(f"{path}?offset=4")
    assert (over["Log-Finished"], over["Run-State"], over["Log-Size"], over.content) == ("true", "succeeded", "4", b"")


def test_a_run_that_waits_has_an_empty_log(tenant: Caller) -> None:
    run = ledger.submit(tenant.tenant)[0]
    answer = tenant.get(f"/runs/{run}/logs")
    assert (answer.status_code, answer.content, answer["Log-Attempt"], answer["Log-Finished"]) == (
        200,
        b"",
        "0",
        "false",
    )


def test_each_attempt_has_its_own_log(runner: RunnerCaller, given: dict[str, Any], tenant: Caller) -> None:
    runner.log(given, 0, b"first\n")
    runner.post("/runner/results", {"results": [named(given, ending="returned", reason="drained")]})
    again = runner.claimed("again")[0]
    runner.log(again, 0, b"second\n")
    path = f"/runs/{given['run']}/logs"
    assert tenant.get(path).content == b"second\n"
    first = tenant.get(f"{path}?attempt=1")
    assert (first.content, first["Log-Finished"]) == (b"first\n", "true")


def test_an_append_is_two_statements(
    runner: RunnerCaller, given: dict[str, Any], django_assert_num_queries: Any
) -> None:
    runner.log(given, 0, b"x")
    with django_assert_num_queries(2):  # who calls, and the one statement
        runner.log(given, 1, b"y")


@pytest.mark.rule("Q8")
def test_logs_of_runs_that_ended_long_ago_are_deleted(runner: RunnerCaller, tenant: Caller) -> None:
    ledger.submit(tenant.tenant, 2)
    old, live = runner.claimed()
    for given in (old, live):
        runner.job(given, "start")
        runner.log(given, 0, b"x")
    runner.job(old, "result", ending="succeeded", exit_code=0)
    LogChunk.objects.update(at="2000-01-01T00:00:00Z")
    assert delete_expired().counts["log_chunks"] == 0  # it has only just ended
    type(ledger.run(old["run"])).objects.filter(pk=old["run"]).update(finished_at="2000-01-01T00:00:00Z")
    assert delete_expired().counts["log_chunks"] == 1
    assert stored(live["run"]) == b"x"
    assert ledger.attempts(old["run"])[0].log_size == 1


@pytest.mark.rule("Q4")
def test_answers_of_claims_are_kept_for_their_time(runner: RunnerCaller, tenant: Caller) -> None:
    ledger.submit(tenant.tenant)
    runner.claimed()
    assert delete_expired().counts["claims"] == 0
    ClaimRequest.objects.update(at="2000-01-01T00:00:00Z")
    assert delete_expired().counts["claims"] == 1
