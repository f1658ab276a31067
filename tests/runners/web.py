"""The real web server as a process, and runners that call it over sockets of their own, so that each can be cut."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
READY_SECONDS = 60
CLAIMS = "/api/v1/runner/claims"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Web:
    """As `up` starts it, with one worker."""

    def __init__(self, database_url: str, workers: int = 1, **environment: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        env = {**os.environ, "DATABASE_DIRECT_URL": "", **environment, "DATABASE_URL": database_url}
        self.process = subprocess.Popen(self.command(workers), cwd=ROOT, env=env)

    def command(self, workers: int) -> list[str]:
        server = [sys.executable, "-m", "granian", "--interface", "rsgi", "--no-ws", "--workers", str(workers)]
        options = ["--host", "127.0.0.1", "--port", str(self.port), "--log-level", "warning"]
        capacity = ["--backlog", "4096", "--backpressure", "4096", "--workers-kill-timeout", "5"]
        return [*server, *options, *capacity, "controlplane.rsgi:application"]

    def until_ready(self) -> None:
        until = time.monotonic() + READY_SECONDS
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/livez", timeout=5) as answer:  # noqa: S310 - our own server
                    assert answer.status == 200
                return
            except OSError:
                assert time.monotonic() < until, "the web server does not answer"
                assert self.process.poll() is None, "the web server has ended"
                time.sleep(0.1)

    def worker(self) -> int:
        """The process that serves."""
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(listed[-1])

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(20)


@contextmanager
def web_server(database_url: str, workers: int = 1, **environment: str) -> Iterator[Web]:
    web = Web(database_url, workers, **environment)
    try:
        web.until_ready()
        yield web
    finally:
        web.stop()


class OpenPoll:
    """A claim under way."""

    def __init__(self, port: int, token: str, request_id: str = "r1", wait: float = 30, **body: Any) -> None:
        self.began = time.monotonic()
        self._call = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        sent = {"request_id": request_id, "slots": 1, "wait_seconds": wait, **body}
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._call.request("POST", CLAIMS, json.dumps(sent), headers)
        assert self._call.sock is not None
        self.socket = self._call.sock

    def is_open(self, seconds: float = 0.0) -> bool:
        """Whether nothing has come, watched for so long."""
        self.socket.settimeout(seconds or 0.001)
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(60)
        return False

    def answer(self) -> tuple[int, dict[str, Any], http.client.HTTPMessage]:
        response = self._call.getresponse()
        data = response.read()
        self._call.close()
        return response.status, json.loads(data) if data else {}, response.headers

    def runs(self) -> list[int]:
        status, body, _ = self.answer()
        assert status == 200, (status, body)
        return [one["run"] for one in body["assignments"]]

    def cut(self) -> None:
        self._call.close()


class LossyProxy:
    """Between an agent and the server; while `losing`, the first answer that holds an assignment is not passed on."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.losing = True
        self.lost = 0
        self.on_loss: Callable[[], object] = lambda: None
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return  # closed: the test is over
            far = socket.create_connection(("127.0.0.1", self._target))
            for source, sink, answers in ((near, far, False), (far, near, True)):
                threading.Thread(target=self._pass_on, args=(source, sink, answers), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if answers and self.losing and b'"job_token"' in data:
                    self.losing = False
                    self.lost += 1
                    self.on_loss()
                    break
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        source.close()

    def close(self) -> None:
        self._server.close()


class HoldingProxy:
    """Between an agent and the server: the next request, or answer, with a certain piece in it waits for `go`."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._needles: dict[bool, bytes] = {}
        self._held = threading.Event()
        self._go = threading.Event()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self, *, request: bytes = b"", answer: bytes = b"") -> None:
        """Arm it for one such piece."""
        self._held.clear()
        self._go.clear()
        self._needles = {False: request, True: answer}

    @property
    def held(self) -> bool:
        """Whether it stands here now."""
        return self._held.is_set() and not self._go.is_set()

    def go(self) -> None:
        """Let it pass."""
        self._go.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed: the test is over
            while True:
                near = self._server.accept()[0]
                far = socket.create_connection(("127.0.0.1", self._target))
                for source, sink, answers in ((near, far, False), (far, near, True)):
                    threading.Thread(target=self._pass_on, args=(source, sink, answers), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                needle = self._needles.get(answers, b"")
                if needle and needle in data:
                    self._needles = {}
                    self._held.set()
                    self._go.wait(READY_SECONDS)
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        source.close()

    def close(self) -> None:
        self._go.set()
        self._server.shutdown(socket.SHUT_RDWR)  # else its thread would wait in `accept` for ever
        self._server.close()
