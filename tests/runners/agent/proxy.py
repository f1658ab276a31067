"""A socket in front of the real Docker daemon that refuses, cuts or loses chosen calls."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from typing import TYPE_CHECKING, Self

from runners.agent.executors.docker_adapter import DockerAdapter

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

DAEMON = "/var/run/docker.sock"
HOLD_SECONDS = 60


class DockerProxy:
    """Matches by a piece of the request's first line."""

    def __init__(self, path: Path) -> None:
        self.adapter = DockerAdapter(f"unix://{path}")
        self.refuse = b""
        """Answered with an error instead of being passed on."""
        self.cut = b""
        """The connection is closed instead of passing it on."""
        self.lose_reply = b""
        """Passed on once, and the connection closed instead of the reply."""
        self.late = b""
        """The connection is closed at once, and what was asked reaches the daemon only later."""
        self.late_seconds = 1.0
        self.hold_reply = b""
        """Passed on once, and the reply does not come before `going` is set, as from a daemon that is busy."""
        self.going = threading.Event()
        self._lines: list[bytes] = []
        self._pairs: list[socket.socket] = []
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen(32)
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.adapter.close()
        self._server.close()
        self.break_all()

    def seen(self, piece: bytes) -> int:
        return sum(piece in line for line in self._lines)

    def break_all(self) -> None:
        for one in self._pairs:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._pairs.clear()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._server.accept()[0]
                threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        daemon = socket.socket(socket.AF_UNIX)
        daemon.connect(DAEMON)
        self._pairs += [client, daemon]
        with client, daemon, contextlib.suppress(OSError):
            losing = holding = False
            while True:
                for ready in select.select([client, daemon], [], [])[0]:
                    data = ready.recv(1 << 16)
                    if not data or (ready is daemon and losing):
                        return
                    if ready is daemon:
                        if not holding or self.going.wait(HOLD_SECONDS):
                            client.sendall(data)
                        continue
                    verb = self._judge(data)
                    losing, holding = losing or verb == "lose", holding or verb == "hold"
                    if verb == "cut":
                        return
                    if verb == "late":
                        # The body comes in a piece of its own.
                        while select.select([client], [], [], 0.2)[0]:
                            data += client.recv(1 << 16)
                        client.close()
                        time.sleep(self.late_seconds)
                        daemon.sendall(data)
                        daemon.recv(1 << 16)
                        return
                    if verb == "refuse":
                        client.sendall(b"HTTP/1.1 500 No\r\nContent-Length: 7\r\n\r\nrefused")
                        continue
                    daemon.sendall(data)

    def _judge(self, data: bytes) -> str:
        line = data.split(b"\r\n", 1)[0]
        self._lines.append(line)
        if self.refuse and self.refuse in line:
            return "refuse"
        if self.cut and self.cut in line:
            return "cut"
        if self.lose_reply and self.lose_reply in line:
            self.lose_reply = b""
            return "lose"
        if self.late and self.late in line:
            self.late = b""
            return "late"
        if self.hold_reply and self.hold_reply in line:
            self.hold_reply = b""
            return "hold"
        return "pass"
