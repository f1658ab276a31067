"""Database views under the web server as it is, beside the same views under plain WSGI of the same server.

Closed loops over sockets of this process, in turns. Rates depend on what else the machine does; the processor time of
the server's processes for one request does not as much, so that is what is compared.
"""

from __future__ import annotations

import selectors
import socket
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from admission.services.tenants import issue_token
from benchmarks.idle import cpu_seconds, percentile
from benchmarks.report import Row
from controlplane.core.audit import SYSTEM
from tests import ledger
from tests.runners.conftest import make_runner
from tests.runners.web import Web, web_server

CONNECTIONS = 8
BAR = 1.1


class Wsgi(Web):
    """The same server with its WSGI interface, as `up` ran it before claims could wait."""

    def command(self, workers: int) -> list[str]:
        """Granian, eight blocking threads."""
        server = [sys.executable, "-m", "granian", "--interface", "wsgi", "--no-ws", "--workers", str(workers)]
        options = ["--host", "127.0.0.1", "--port", str(self.port), "--log-level", "error", "--blocking-threads", "8"]
        return [*server, *options, "--workers-kill-timeout", "5", "controlplane.wsgi:application"]


class Load:
    """Connections that each send the same request again when it was answered."""

    def __init__(self, web: Web, request: bytes) -> None:
        self._web = web
        self._request = request

    def run(self, seconds: float) -> tuple[float, float, float]:
        """Requests a second, p50 in ms, ms of the server's processor time a request."""
        selector, sent, answers = selectors.DefaultSelector(), {}, {}
        used, began = self._used(), time.perf_counter()
        for _ in range(CONNECTIONS):
            client = socket.create_connection(("127.0.0.1", self._web.port))
            selector.register(client, selectors.EVENT_READ)
            sent[client], answers[client] = time.perf_counter(), b""
            client.sendall(self._request)
        times: list[float] = []
        while time.perf_counter() < began + seconds:
            for key, _ in selector.select(0.5):
                client = key.fileobj
                answers[client] += client.recv(65536)  # type: ignore[union-attr]
                if not _is_whole(answers[client]):
                    continue
                assert answers[client][9:10] == b"2", answers[client][:300]
                times.append(time.perf_counter() - sent[client])
                sent[client], answers[client] = time.perf_counter(), b""
                client.sendall(self._request)  # type: ignore[union-attr]
        took, cost = time.perf_counter() - began, self._used() - used
        for client in sent:
            client.close()
        return len(times) / took, percentile(times, 0.5) * 1e3, cost / len(times) * 1e3

    def _used(self) -> float:
        main = self._web.process.pid
        children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        return sum(cpu_seconds(int(child)) for child in children)


def _is_whole(data: bytes) -> bool:
    head, found, body = data.partition(b"\r\n\r\n")
    length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0")
    return bool(found) and len(body) >= int(length.partition(b":")[2])


def _request(method: str, path: str, token: str, body: bytes = b"") -> bytes:
    head = f"{method} /api/v1{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
    kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
    return f"{head}{kind}\r\n".encode() + body


def measure(url: str, *, rounds: int, seconds: float) -> Iterator[Row]:
    """A row for each view."""
    tenant = ledger.make_tenant(10**6)
    token, runner = issue_token(tenant, "bench", actor=SYSTEM)[1], make_runner().token
    ledger.submit(tenant, 50)
    views = {
        "a runner's heartbeat": _request("POST", "/runner/heartbeats", runner, b'{"runs": []}'),
        "a submit of one run": _request("POST", "/runs", token, b'{"command": ["true"]}'),
        "a list of 50 runs": _request("GET", "/runs", token),
    }
    with web_server(url, workers=2) as ours, _wsgi(url) as theirs:
        for what, request in views.items():
            mine, others = Load(ours, request), Load(theirs, request)
            mine.run(1)
            others.run(1)
            pairs = [(mine.run(seconds), others.run(seconds)) for _ in range(rounds)]
            ratios = [a[2] / b[2] for a, b in pairs]
            ratio = statistics.median(ratios)
            yield Row(
                f"processor time of {what}, {CONNECTIONS} connections, against plain WSGI",
                ratio,
                f"≤ {BAR:g}",
                ratio <= BAR,
                _told([a for a, _ in pairs]),
                _told([b for _, b in pairs]),
                f"{min(ratios):.2f}-{max(ratios):.2f}",
            )


def _told(runs: list[tuple[float, float, float]]) -> str:
    rate, p50, cost = (statistics.median(values) for values in zip(*runs, strict=True))
    return f"{cost:.2f} ms; {rate:,.0f} requests/s, p50 {p50:.1f} ms"


@contextmanager
def _wsgi(url: str) -> Iterator[Web]:
    web = Wsgi(url, 2)
    try:
        web.until_ready()
        yield web
    finally:
        web.stop()
