"""A transport whose calls can be ended from another thread: a claim that waits must not hold up a drain.

Closing a session does not wake the thread that reads from it; shutting the socket down does. So every connection of
this transport tells its socket.
"""

from __future__ import annotations

import socket
import threading
from typing import Any
from weakref import WeakSet

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from runners.transport import Transport, Unreachable


class CallCut(Exception):
    """The call was ended by `cut`. Says nothing about what was done; it is repeated under the same request id."""


class _Sockets:
    """The open sockets of one transport, and whether they are to be shut."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: WeakSet[socket.socket] = WeakSet()
        self.cut = False

    def add(self, opened: socket.socket) -> None:
        with self._lock:
            self._open.add(opened)
            cut = self.cut
        if cut:
            _shut(opened)

    def shut_all(self) -> None:
        with self._lock:
            self.cut = True
            opened = list(self._open)
            self._open.clear()
        for one in opened:
            _shut(one)

    def renew(self) -> None:
        with self._lock:
            self.cut = False


def _shut(opened: socket.socket) -> None:
    try:
        opened.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # closed already, which is what was asked for


class _Adapter(HTTPAdapter):
    def __init__(self, sockets: _Sockets) -> None:
        self._sockets = sockets
        super().__init__()

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, **options)
        self.poolmanager.pool_classes_by_scheme = _pools(self._sockets)

    def proxy_manager_for(self, *arguments: Any, **options: Any) -> Any:
        manager = super().proxy_manager_for(*arguments, **options)
        manager.pool_classes_by_scheme = _pools(self._sockets)
        return manager


def _pools(sockets: _Sockets) -> dict[str, Any]:
    class Plain(HTTPConnection):
        def connect(self) -> None:
            super().connect()
            sockets.add(self.sock)

    class Secure(HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            sockets.add(self.sock)

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = Secure

    return {"http": PlainPool, "https": SecurePool}


class CuttableTransport(Transport):
    """As `Transport`; `cut` ends what is under way and what begins before `renew`."""

    def __init__(self, url: str, token: str, *, read_seconds: float) -> None:
        super().__init__(url, token, read_seconds=read_seconds)
        self._sockets = _Sockets()

    def cut(self) -> None:
        """End the calls under way, and those that begin from now on, with `CallCut`."""
        self._sockets.shut_all()

    def renew(self) -> None:
        """Calls may be made again. Whoever looks at what may have changed does so after this."""
        self._sockets.renew()

    def call(self, method: str, path: str, **parts: Any) -> requests.Response:
        """As `Transport.call`.

        Raises:
            CallCut: ended by `cut`.
        """
        if self._sockets.cut:
            raise CallCut
        try:
            return super().call(method, path, **parts)
        except Unreachable as error:
            if self._sockets.cut:
                raise CallCut from error
            raise

    def _make_session(self) -> requests.Session:
        session = super()._make_session()
        for prefix in ("http://", "https://"):
            session.mount(prefix, _Adapter(self._sockets))
        return session
