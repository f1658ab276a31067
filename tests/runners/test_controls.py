"""Both implementations of a driver's control plane, REST and SQL, held against the same protocol."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from django.db import OperationalError, transaction

from admission.services.runs import cancel_runs
from controlplane.core.audit import SYSTEM
from controlplane.core.sql import execute, one
from runners.agent import http_control
from runners.agent.assignment import Capacity, Ending, Result, RunKey, Verdict
from runners.agent.control import Control, ControlUnavailable, LogOffset, Superseded
from runners.agent.http_control import HttpControl
from runners.database_control import DatabaseControl
from runners.services.fleet import revoke_runner
from runners.transport import Transport
from tests import ledger
from tests.runners.conftest import make_runner


@pytest.fixture
def over_rest(live_server: Any, transactional_db: None) -> Iterator[HttpControl]:
    transport = Transport(live_server.url, make_runner().token)
    yield HttpControl(transport)
    transport.close()


@pytest.fixture
def over_sql(transactional_db: None, make_driver: Any) -> DatabaseControl:
    return DatabaseControl(make_driver())


@pytest.fixture(params=["over_rest", "over_sql"])
def control(request: pytest.FixtureRequest) -> Control:
    found: Control = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def tenant_row(transactional_db: None) -> Any:
    return ledger.make_tenant(quota=10)


@pytest.mark.rule("A12", "A13")
def test_a_session_that_the_server_ended_for_standing_still_is_an_outage_and_the_next_call_has_another(
    over_sql: DatabaseControl, tenant_row: Any, connect: Any
) -> None:
    [run] = ledger.submit(tenant_row)
    observer = connect(autocommit=True)

    def stand_still(capacity: Capacity) -> Capacity:
        with transaction.atomic():
            execute("SELECT set_config('idle_in_transaction_session_timeout', '100', true)")
            row = one("SELECT pg_backend_pid() AS pid")
            pid = row and row["pid"]
            ledger.until(lambda: not observer.execute("SELECT FROM pg_stat_activity WHERE pid = %s", (pid,)).rowcount)
            execute("SELECT 1")
        return capacity

    with pytest.raises(ControlUnavailable):
        DatabaseControl(over_sql.driver, stand_still).claim("r", Capacity(1))
    assert [a.run for a in over_sql.claim("r", Capacity(1))] == [run]


@pytest.mark.rule("Q12")
def test_a_run_from_its_claim_to_its_end(control: Control, tenant_row: Any) -> None:
    run = ledger.submit(tenant_row)[0]
    assignment = control.claim("r", Capacity(5))[0]
    key = assignment.key
    assert (assignment.run, assignment.attempt, assignment.tenant) == (run, 1, tenant_row.slug)
    assert assignment.spec.command == ["true"]
    assert control.start([key]) == {key: Verdict.OK}
    assert control.heartbeat([key]) == {key: Verdict.OK}
    assert control.append_log(key, 0, b"out\x00\xff") == 5
    result = Result(run, key.epoch, Ending.SUCCEEDED, exit_code=0)
    assert control.settle([result]) == {key: Verdict.OK}
    assert control.settle([result]) == {key: Verdict.OK}
    assert ledger.state(run) == "succeeded"
    ledger.assert_conserved()


def test_nothing_to_claim(control: Control) -> None:
    assert list(control.claim("r", Capacity(5))) == []


def test_the_envelope_bounds_the_claim(control: Control, tenant_row: Any) -> None:
    ledger.submit(tenant_row, 3, resources={"memory_mib": 300, "cpu": 1})
    assert len(control.claim("a", Capacity(5, memory_mib=400))) == 1
    assert len(control.claim("b", Capacity(5, cpu=1.0))) == 1


@pytest.mark.rule("Q8")
def test_a_log_that_ends_elsewhere_says_where(control: Control, tenant_row: Any) -> None:
    ledger.submit(tenant_row)
    key = control.claim("r", Capacity(1))[0].key
    control.append_log(key, 0, b"abc")
    with pytest.raises(LogOffset) as elsewhere:
        control.append_log(key, 7, b"x")
    assert elsewhere.value.stored == 3


@pytest.mark.rule("Q6")
def test_what_has_moved_on_is_superseded(control: Control, tenant_row: Any) -> None:
    ledger.submit(tenant_row)
    key = control.claim("r", Capacity(1))[0].key
    control.give_back([key], "lost")
    assert control.start([key]) == {key: Verdict.SUPERSEDED}
    assert control.heartbeat([key]) == {key: Verdict.SUPERSEDED}
    assert control.settle([Result(key.run, key.epoch, Ending.FAILED)]) == {key: Verdict.SUPERSEDED}
    with pytest.raises(Superseded):
        control.append_log(key, 0, b"x")
    assert ledger.state(key.run) == "queued"


@pytest.mark.rule("A28")
def test_a_cancel_is_heard_and_answered(control: Control, tenant_row: Any) -> None:
    ledger.submit(tenant_row, 2)
    first, second = (a.key for a in control.claim("r", Capacity(2)))
    control.start([first])
    cancel_runs([first.run, second.run], actor=SYSTEM)
    assert control.start([second]) == {second: Verdict.CANCEL}
    assert control.heartbeat([first]) == {first: Verdict.CANCEL}
    ends = [Result(key.run, key.epoch, Ending.CANCELLED, "cancelled") for key in (first, second)]
    assert set(control.settle(ends).values()) == {Verdict.OK}
    assert (ledger.state(first.run), ledger.state(second.run)) == ("cancelled", "cancelled")


@pytest.mark.rule("R14")
@pytest.mark.parametrize(("reason", "tries"), [("drained", 0), ("shutdown", 0), ("lost", 1)])
def test_a_return_for_a_drain_burns_no_attempt(control: Control, tenant_row: Any, reason: str, tries: int) -> None:
    run = ledger.submit(tenant_row)[0]
    key = control.claim("r", Capacity(1))[0].key
    control.start([key])
    control.give_back([key], reason)
    assert (ledger.run(run).state, ledger.run(run).tries) == ("queued", tries)


def test_a_result_is_never_refused_for_its_wording(control: Control, tenant_row: Any) -> None:
    run = ledger.submit(tenant_row)[0]
    key = control.claim("r", Capacity(1))[0].key
    result = Result(run, key.epoch, Ending.FAILED, "r" * 100, "\x00\ud800" + "d" * 100_000, 1)
    assert control.settle([result]) == {key: Verdict.OK}
    assert len(ledger.run(run).reason) == 60


# -- REST only --------------------------------------------------------------------------------------------------------


@pytest.mark.rule("Q4")
def test_a_claim_repeated_over_rest_is_the_same(over_rest: HttpControl, tenant_row: Any) -> None:
    ledger.submit(tenant_row, 3)
    assert over_rest.claim("same", Capacity(2)) == over_rest.claim("same", Capacity(2))


@pytest.mark.rule("Q9")
def test_a_cancel_that_comes_with_another_answer_is_passed_on(over_rest: HttpControl, tenant_row: Any) -> None:
    ledger.submit(tenant_row)
    key = over_rest.claim("r", Capacity(1))[0].key
    over_rest.start([key])
    heard: list[tuple[RunKey, Verdict]] = []
    over_rest.on_verdict = lambda key, verdict: heard.append((key, verdict))
    over_rest.claim("more", Capacity(1))
    assert heard == []
    cancel_runs([key.run], actor=SYSTEM)
    over_rest.heartbeat([])
    assert heard == [(key, Verdict.CANCEL)]


@pytest.mark.rule("Q2")
def test_a_dead_token_is_remembered(over_rest: HttpControl) -> None:
    runner = over_rest.introduce()["id"]
    revoke_runner(runner, actor=SYSTEM, reason="x")
    with pytest.raises(ControlUnavailable):
        over_rest.claim("r", Capacity(1))
    assert over_rest.revoked is True


@pytest.mark.rule("A25")
def test_a_specification_of_another_version_is_set_aside(
    over_rest: HttpControl, tenant_row: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = ledger.submit(tenant_row, 2)
    real = http_control.parse_spec
    unread = iter([True, False])

    def picky(value: object) -> Any:
        return real({**value, "from_the_future": 1} if next(unread) else value)  # type: ignore[dict-item]

    monkeypatch.setattr(http_control, "parse_spec", picky)
    assert [a.run for a in over_rest.claim("r", Capacity(2))] == [second]
    assert (ledger.run(first).state, ledger.run(first).reason) == ("failed", "invalid_spec")


class _Stub(BaseHTTPRequestHandler):
    """Answers every call with what the test says."""

    answer: tuple[int, str, bytes] = (200, "application/json", b"{}")

    def do_POST(self) -> None:
        status, kind, body = self.answer
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Location", "http://127.0.0.1:9/")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.mark.parametrize(
    "answer",
    [
        (500, "text/html", b"<h1>"),
        (502, "text/html", b""),
        (503, "application/problem+json", b'{"code": "unavailable"}'),
        (429, "application/problem+json", b'{"code": "slow_down"}'),
        (200, "text/html", b"a captive portal"),
        (200, "application/json", b"{cut"),
        (302, "text/html", b""),
    ],
)
def test_an_answer_that_is_none_says_nothing_about_the_effect(answer: tuple[int, str, bytes]) -> None:
    server = HTTPServer(("127.0.0.1", 0), type("Handler", (_Stub,), {"answer": answer}))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    transport = Transport(f"http://127.0.0.1:{server.server_port}", "whr_x")
    try:
        with pytest.raises(ControlUnavailable):
            HttpControl(transport).start([RunKey(1, 1)])
    finally:
        transport.close()
        server.shutdown()
        thread.join()
        server.server_close()


def test_nobody_listens() -> None:
    with pytest.raises(ControlUnavailable):
        HttpControl(Transport("http://127.0.0.1:9", "whr_x")).claim("r", Capacity(1))


# -- SQL only ---------------------------------------------------------------------------------------------------------


@pytest.mark.rule("G7")
def test_a_connection_that_breaks_in_a_call_is_unavailability_and_the_next_call_works(
    over_sql: DatabaseControl, tenant_row: Any, connect: Any
) -> None:
    ledger.submit(tenant_row)
    key = over_sql.claim("r", Capacity(1))[0].key
    gate = connect()
    gate.execute("SELECT id FROM admission_run WHERE id = %s FOR UPDATE", (key.run,))

    def twice() -> dict[RunKey, Verdict]:
        with pytest.raises(ControlUnavailable):
            over_sql.heartbeat([key])
        return over_sql.heartbeat([key])

    call = ledger.Concurrent(twice)
    ledger.until_waiting(gate, call)
    gate.execute("SELECT pg_terminate_backend(%s)", (call.backend,))
    gate.commit()
    assert call.result() == {key: Verdict.OK}


def test_an_error_of_the_statement_is_no_outage(over_sql: DatabaseControl, monkeypatch: pytest.MonkeyPatch) -> None:
    def down(*_: object) -> None:
        raise OperationalError("the server is starting up")

    monkeypatch.setattr("runners.database_control.runs.renew_runs", down)
    with pytest.raises(ControlUnavailable, match="starting up"):
        over_sql.heartbeat([RunKey(1, 1)])


def test_a_driver_that_may_not_have_work_gets_none(tenant_row: Any, make_driver: Any) -> None:
    ledger.submit(tenant_row)
    gone = replace(make_driver(), lock=lambda: False)
    assert DatabaseControl(gone).claim("r", Capacity(1)) == []
