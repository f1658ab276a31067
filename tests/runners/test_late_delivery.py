"""Output that the server did not take before the end: the agent brings it afterwards, also in a later life (rule Q8).

The agent is a process and so is the server. Between them stands something that lets everything pass but output, as a
proxy with a rule of its own or a broken line would.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from admission.models import Attempt
from runners.services.logs import read_log
from tests import ledger
from tests.runners.test_agent_keeping import SECONDS, Machine, ended
from tests.runners.web import Web

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.rule("Q8", "Q12"), pytest.mark.timeout(170)]

FIRST, REST = b"before\n", b"".join(b"line %d that comes late\n" % n for n in range(20_000))
SCRIPT = (
    'echo before; while ! test -e "$0"; do sleep 0.05; done; '
    "for n in $(seq 0 19999); do echo line $n that comes late; done"
)
REFUSAL = json.dumps(
    {"type": "about:blank", "title": "Forbidden", "status": 403, "code": "no", "detail": "no"}
).encode()
ANSWER = b"HTTP/1.1 403 Forbidden\r\nContent-Type: application/problem+json\r\nContent-Length: %d\r\n\r\n%s"


class LogGate:
    """A proxy that does not let output pass while it is shut: it refuses, or cuts the line in the middle of it."""

    def __init__(self, port: int, *, cuts: bool = False) -> None:
        self.shut = False
        self._cuts = cuts
        self._target = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed: the test is over
            while True:
                near = self._server.accept()[0]
                far = socket.create_connection(("127.0.0.1", self._target))
                for source, sink, asks in ((near, far, True), (far, near, False)):
                    threading.Thread(target=self._pass_on, args=(source, sink, asks), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, asks: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if asks and self.shut and b"/logs?" in data:
                    self._stop(source, sink, data)
                    break
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        source.close()

    def _stop(self, near: socket.socket, far: socket.socket, data: bytes) -> None:
        if self._cuts:
            far.sendall(data[: len(data) // 2])
            return
        near.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            while b"\r\n\r\n" in data and near.recv(65536):
                pass  # the rest of the body, so that the answer is read
        near.sendall(ANSWER % (len(REFUSAL), REFUSAL))

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)  # else its thread would wait in `accept` for ever
        self._server.close()


@pytest.fixture
def gate(web: Web, transactional_db: None) -> Iterator[LogGate]:
    made = LogGate(web.port)
    yield made
    made.close()


@pytest.fixture
def machine(gate: LogGate, tmp_path: Path) -> Iterator[Machine]:
    made = Machine(gate, tmp_path)
    yield made
    made.stop()


def end_without_log(gate: LogGate, machine: Machine, patience: float = SECONDS) -> int:
    """One run whose end the server knows, and only the beginning of its log; the number of it."""
    # Where other users get through: runs have users of their own.
    with tempfile.TemporaryDirectory(prefix="wharfinger-late.") as place:
        Path(place).chmod(0o711)
        run = ledger.submit(ledger.make_tenant(), command=["sh", "-c", SCRIPT, f"{place}/go"])[0]
        ledger.until(lambda: read_log(run).data == FIRST)
        gate.shut = True
        Path(place, "go").touch()
        ledger.until(lambda: ended(run), patience=patience)
    assert ledger.state(run) == "succeeded"
    # Noted right after the end itself, and before the agent is answered.
    ledger.until(lambda: read_log(run).missing == len(REST))
    piece = read_log(run)
    assert (piece.data, piece.more_may_come) == (FIRST, True)
    assert len(machine.spooled()) == 1
    return run


def is_whole(run: int) -> bool:
    piece = read_log(run)
    return piece.missing == 0 and hashlib.sha256(piece.data).digest() == hashlib.sha256(FIRST + REST).digest()


def test_an_agent_killed_after_the_end_delivers_the_log_in_its_next_life(gate: LogGate, machine: Machine) -> None:
    agent = machine.start()
    run = end_without_log(gate, machine)
    agent.kill()
    agent.wait(SECONDS)
    machine.start()
    # What cannot be delivered yet holds up nothing: it takes other runs meanwhile.
    other = ledger.submit(ledger.make_tenant(), command=["true"])[0]
    ledger.until(lambda: ended(other))
    assert not is_whole(run)
    gate.shut = False
    ledger.until(lambda: is_whole(run))
    ledger.until(lambda: machine.spooled() == [])
    assert len(ledger.attempts(run)) == 1
    assert [event["bytes"] for event in machine.named("log_delivered_late")] == [len(REST)]


def test_an_agent_that_lives_on_delivers_it_as_soon_as_it_is_taken(gate: LogGate, machine: Machine) -> None:
    machine.start()
    run = end_without_log(gate, machine)
    gate.shut = False
    ledger.until(lambda: is_whole(run))
    ledger.until(lambda: machine.spooled() == [])


def test_after_its_window_it_is_dropped_and_the_gap_stays_shown(gate: LogGate, machine: Machine) -> None:
    machine.start()
    run = end_without_log(gate, machine)
    Attempt.objects.filter(run=run).update(released_at=timezone.now() - timedelta(seconds=601))
    gate.shut = False
    ledger.until(lambda: machine.named("log_lost"))
    ledger.until(lambda: machine.spooled() == [])
    piece = read_log(run)
    assert (piece.data, piece.missing, piece.more_may_come) == (FIRST, len(REST), False)


def test_an_agent_told_to_stop_now_says_that_something_is_left(gate: LogGate, machine: Machine) -> None:
    agent = machine.start()
    run = end_without_log(gate, machine)
    agent.send_signal(signal.SIGTERM)
    ledger.until(lambda: machine.named("draining"))
    ledger.holds_for(5, lambda: agent.poll() is None)
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(SECONDS) == 75
    gate.shut = False
    assert machine.start("--idle-exit", "0.5").wait(SECONDS) == 0
    assert is_whole(run)
    assert machine.spooled() == []


@pytest.mark.soak
def test_a_line_that_is_cut_within_the_output_holds_up_the_end_for_a_minute_only(
    web: Web, transactional_db: None, tmp_path: Path
) -> None:
    gate = LogGate(web.port, cuts=True)
    machine = Machine(gate, tmp_path)
    try:
        agent = machine.start()
        run = end_without_log(gate, machine, patience=120)
        agent.kill()
        agent.wait(SECONDS)
        gate.shut = False
        machine.start()
        ledger.until(lambda: is_whole(run))
        ledger.until(lambda: machine.spooled() == [])
    finally:
        machine.stop()
        gate.close()
