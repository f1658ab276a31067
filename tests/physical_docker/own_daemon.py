"""A Docker daemon of a test's own: to be stopped, started again, and told apart from the machine's."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import docker

from runners.agent.executors.docker_adapter import DEFAULT_ENDPOINT
from tests.physical_docker.world import eventually


class OwnDaemon:
    """Its containers have no network; its image is copied from the machine's daemon."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.endpoint = f"unix://{place}/docker.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        # In a network of its own: a daemon without a bridge removes the one that the machine's daemon works with.
        command = [
            "unshare", "--net", "dockerd",
            "--data-root", str(self.place / "data"), "--exec-root", str(self.place / "exec"),
            "-H", self.endpoint, "-p", str(self.place / "pid"), "--bridge=none", "--iptables=false",
            "--ip-forward=false", "--storage-driver", "vfs", "--log-level", "error",
        ]  # fmt: skip
        with (self.place / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        eventually(self._answers, 60, "the own daemon answers")

    def _answers(self) -> bool:
        # Not by the client: one that fails in its constructor leaves its connection to the garbage collector.
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
            probe.settimeout(10)
            probe.connect(str(self.place / "docker.sock"))
            probe.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b" 200 " in probe.recv(4096)
        return False

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
            self._process = None

    def load(self, image: str) -> None:
        machine, own = docker.APIClient(base_url=DEFAULT_ENDPOINT), docker.APIClient(base_url=self.endpoint)
        with tempfile.TemporaryFile() as archive:
            for part in machine.get_image(image):
                archive.write(part)
            archive.seek(0)
            for _ in own.load_image(archive):
                pass
        machine.close()
        own.close()


@contextmanager
def own_daemon(image: str) -> Iterator[OwnDaemon]:
    # A short path: a socket's name holds 107 bytes, containerd makes its own below.
    place = Path(tempfile.mkdtemp(prefix="whd-"))
    daemon = OwnDaemon(place)
    try:
        daemon.start()
        daemon.load(image)
        yield daemon
    finally:
        daemon.stop()
        shutil.rmtree(place, ignore_errors=True)
