"""The real web server as a process, and runners that call it over sockets of their own, so that each can be cut."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
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
    """One worker, as `up` starts it."""

    def __init__(self, database_url: str, **environment: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        server = [sys.executable, "-m", "granian", "--interface", "rsgi", "--no-ws", "--workers", "1"]
        options = ["--host", "127.0.0.1", "--port", str(self.port), "--log-level", "warning"]
        capacity = ["--backlog", "4096", "--backpressure", "4096", "--workers-kill-timeout", "5"]
        env = {**os.environ, "DATABASE_DIRECT_URL": "", **environment, "DATABASE_URL": database_url}
        self.process = subprocess.Popen(
            [*server, *options, *capacity, "controlplane.rsgi:application"], cwd=ROOT, env=env
        )

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
def web_server(database_url: str, **environment: str) -> Iterator[Web]:
    web = Web(database_url, **environment)
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
