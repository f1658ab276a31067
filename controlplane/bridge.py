"""The WSGI application behind granian's own interface: small bodies are read on the loop, the rest is a thread's."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Iterable, Mapping
from typing import Any

SMALL_BYTES = 1 << 20
_UNPREFIXED = {"content-type": "CONTENT_TYPE", "content-length": "CONTENT_LENGTH"}


class LengthRequired(Exception):
    """A large body must say its length: the application reads as many bytes as that."""


async def _small(protocol: Any) -> bytes:
    data = b""
    async for piece in protocol:
        data += piece
        if len(data) > SMALL_BYTES:
            raise LengthRequired
    return data


class BodyReader(io.RawIOBase):
    """A large body as a file: pieces are fetched from the loop as the application reads them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: Any) -> None:
        self._loop = loop
        self._pieces = protocol.__aiter__()
        self._left = memoryview(b"")
        self._ended = False

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """What has come, or the next piece; 0 at the end."""
        while not self._left and not self._ended:
            piece = asyncio.run_coroutine_threadsafe(self._next(), self._loop).result()
            self._ended = piece is None
            self._left = memoryview(piece or b"")
        taken = self._left[: len(buffer)]
        buffer[: len(taken)] = taken
        self._left = self._left[len(taken) :]
        return len(taken)

    async def _next(self) -> bytes | None:
        return await anext(self._pieces, None)


class Bridge:
    """Serves requests of granian's interface by a WSGI application."""

    def __init__(self, application: Any) -> None:
        self._application = application

    async def receive(self, scope: Any, protocol: Any) -> bytes | None:
        """The body of a request that announces a small one; null: it is to be read piece by piece.

        Raises:
            LengthRequired: it does not say how long it is, and is not small.
        """
        length = scope.headers.get("content-length")
        if length is None:
            return await _small(protocol) if "transfer-encoding" in scope.headers or scope.http_version == "2" else b""
        if not length.isdigit() or int(length) > SMALL_BYTES:
            return None
        return bytes(await protocol()) if length != "0" else b""

    def serve(self, loop: asyncio.AbstractEventLoop, scope: Any, protocol: Any, body: bytes | None) -> None:
        """Answer one request, on a thread that serves nothing else meanwhile."""
        stream = io.BytesIO(body) if body is not None else io.BufferedReader(BodyReader(loop, protocol))
        started: list[Any] = []

        def start_response(status: str, headers: list[tuple[str, str]], _error: Any = None) -> None:
            started[:] = [int(status[:3]), [(name.lower(), value) for name, value in headers]]

        request = environ(scope, stream)
        if body:
            # Django reads as much as this says; a body in chunks does not say it.
            request["CONTENT_LENGTH"] = str(len(body))
        answer = self._application(request, start_response)
        try:
            if getattr(answer, "streaming", False):
                self._stream(loop, protocol, started, answer)
            else:
                protocol.response_bytes(*started, b"".join(answer))
        finally:
            # Django gives back here, to this thread, what the request held.
            answer.close()

    def _stream(
        self, loop: asyncio.AbstractEventLoop, protocol: Any, started: list[Any], answer: Iterable[Any]
    ) -> None:
        transport = protocol.response_stream(*started)

        async def send(piece: bytes) -> None:
            await transport.send_bytes(piece)

        for piece in answer:
            asyncio.run_coroutine_threadsafe(send(bytes(piece)), loop).result()


def environ(scope: Any, stream: Any) -> dict[str, Any]:
    """PEP 3333's dictionary."""
    host, _, port = scope.server.rpartition(":")
    found: dict[str, Any] = {
        "REQUEST_METHOD": scope.method,
        "SCRIPT_NAME": "",
        # The server has decoded it: once more, and a name with a percent sign in it would be another name.
        "PATH_INFO": scope.path.encode().decode("latin-1"),
        "QUERY_STRING": scope.query_string,
        "SERVER_NAME": host,
        "SERVER_PORT": port,
        "SERVER_PROTOCOL": f"HTTP/{scope.http_version}",
        "REMOTE_ADDR": scope.client.rpartition(":")[0],
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": scope.scheme,
        "wsgi.input": stream,
        "wsgi.input_terminated": True,
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
    }
    found.update(_headers(scope.headers.items()))
    if scope.authority and "HTTP_HOST" not in found:
        found["HTTP_HOST"] = scope.authority
    return found


def _headers(items: Iterable[tuple[str, str]]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for name, value in items:
        if "_" in name:
            # Else `x_forwarded_proto` of a caller would stand where a proxy's `x-forwarded-proto` is looked for.
            continue
        key = _UNPREFIXED.get(name) or "HTTP_" + name.upper().replace("-", "_")
        if key in found:
            found[key] += ("; " if key == "HTTP_COOKIE" else ",") + value
        else:
            found[key] = value
    return found
