"""Connections to Redis or Valkey, the only module that imports the client.

The client's own pool and its retries are not used: it would send a script again on a new connection, perhaps to
another incarnation of the server, without the gate. A connection here is used until its first error, no longer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from redis import connection as client
from redis import exceptions as wrong

from admission.physical.errors import Refused, Unavailable
from admission.physical.facts import ServerFacts, durability_problems, parse_info
from admission.physical.scripts import Script

COMMAND_SECONDS: Final = 5.0
"""P13: no command is waited for longer."""

IDLE_CONNECTIONS: Final = 16


class Connection:
    """One connection to one incarnation of the server; a connection cannot outlive that incarnation."""

    def __init__(self, raw: client.Connection, name: str) -> None:
        self._raw = raw
        self._name = name
        self.usable = True
        self.facts = ServerFacts.of(parse_info(self.call("INFO", "server") + "\n" + self.call("INFO", "replication")))

    @property
    def run_id(self) -> str:
        """The incarnation of the server, as read on this very connection."""
        return self.facts.run_id

    def script(self, script: Script, keys: Sequence[str], arguments: Sequence[str]) -> list[Any]:
        """Run it once. Only a server that says it does not know the script is given the text, on this connection."""
        rest = (str(len(keys)), *keys, *arguments)
        try:
            answer = self._exchange("EVALSHA", script.sha, *rest)
        except wrong.NoScriptError:
            answer = self.call("EVAL", script.text, *rest)
        except wrong.RedisError as error:
            raise self._translated(error, f"script {script.name}") from error
        return list(answer)

    def call(self, *command: str) -> Any:
        """One command."""
        try:
            return self._exchange(*command)
        except wrong.RedisError as error:
            raise self._translated(error, command[0]) from error

    def _exchange(self, *command: str) -> Any:
        if not self.usable:
            # The client would connect again by itself, and the command would pass by the gate.
            raise Unavailable(f"{self._name}: this connection broke before")
        try:
            self._raw.send_command(*command, check_health=False)
            return self._raw.read_response()
        except (wrong.NoScriptError, wrong.NoPermissionError, wrong.OutOfMemoryError):
            raise
        except BaseException:
            self.close()
            raise

    def _translated(self, error: wrong.RedisError, what: str) -> Unavailable | Refused:
        text = f"{self._name}: {what}: {error}"
        if isinstance(error, (wrong.NoPermissionError, wrong.AuthenticationError)):
            return Refused(f"{text}. Allow it to the user of REDIS_URL (docs/physical.md lists the commands).")
        if isinstance(error, wrong.ReadOnlyError):
            return Unavailable(f"{text}. The server became a replica; point REDIS_URL at the primary.")
        if isinstance(error, wrong.OutOfMemoryError):
            return Unavailable(f"{text}. Its memory is full: nothing new is admitted until it has room.")
        if isinstance(error, wrong.TimeoutError):
            return Unavailable(f"{text} (after {COMMAND_SECONDS:g} s). It may still take effect.")
        return Unavailable(text)

    def fresh(self) -> bool:
        """Whether nothing came in while it was idle: an end of the stream would."""
        try:
            return self.usable and not self._raw.can_read(0)
        except wrong.RedisError:
            return False

    def close(self) -> None:
        """Never to be used again."""
        self.usable = False
        self._raw.disconnect()


class RedisServer:
    """The server that `url` names. Safe for threads; a forked child opens connections of its own."""

    def __init__(self, url: str, command_seconds: float = COMMAND_SECONDS) -> None:
        try:
            options = dict(client.parse_url(url))
        except ValueError:
            # Neither told nor chained: where a password breaks the address, that error quotes it.
            raise Refused(
                "REDIS_URL cannot be read: it looks like redis://:password@host:6379/0, and in a password the "
                "characters / ? # @ : % are written as %2F %3F %23 %40 %3A %25"
            ) from None
        self._class: type[client.Connection] = options.pop("connection_class", client.Connection)
        # What the address says about retries or pools is not followed: see the module.
        for option in ("max_connections", "retry_on_timeout", "retry_on_error", "health_check_interval", "protocol"):
            options.pop(option, None)
        self._options = {
            **options,
            "socket_timeout": command_seconds,
            "socket_connect_timeout": command_seconds,
            "decode_responses": True,
            "protocol": 2,
            "driver_info": None,
        }
        self.name = f"Redis at {options.get('host', options.get('path', 'localhost'))}:{options.get('port', '')}"
        self._idle: list[Connection] = []
        self._pid = os.getpid()

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection for one exchange or several; it goes back unless it broke."""
        connection = self._take()
        try:
            yield connection
        finally:
            self._give_back(connection)

    def _take(self) -> Connection:
        if self._pid != os.getpid():
            self._idle, self._pid = [], os.getpid()
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return self._open()
            if connection.fresh():
                return connection
            connection.close()

    def _give_back(self, connection: Connection) -> None:
        if connection.usable and len(self._idle) < IDLE_CONNECTIONS:
            self._idle.append(connection)
        else:
            connection.close()

    def _open(self) -> Connection:
        try:
            raw = self._class(**self._options)
            raw.connect()
        except wrong.AuthenticationError as error:
            raise Refused(f"{self.name}: {error}. Correct the user and password in REDIS_URL.") from error
        except (wrong.ConnectionError, wrong.TimeoutError, wrong.ResponseError, OSError) as error:
            raise Unavailable(f"{self.name} cannot be reached: {error}") from error
        except TypeError as error:
            raise Refused(f"REDIS_URL has an option that the client does not know: {error}") from error
        connection = Connection(raw, self.name)
        if problem := connection.facts.problem():
            connection.close()
            raise Refused(f"{self.name}: {problem}")
        return connection

    def close(self) -> None:
        """Close what is idle."""
        while self._idle:
            self._idle.pop().close()


def read_durability(connection: Connection) -> list[str]:
    """What would let the server forget a holder."""
    info = parse_info(connection.call("INFO", "persistence") + "\n" + connection.call("INFO", "memory"))
    try:
        flat = connection.call("CONFIG", "GET", "appendfsync")
    except Refused:
        return durability_problems(info, None)
    return durability_problems(info, dict(zip(flat[::2], flat[1::2], strict=True)))
