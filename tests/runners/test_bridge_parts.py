"""The bridge by itself: what the real server and its clients hardly ever do, and what must hold when they do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from controlplane.bridge import SMALL_BYTES, Bridge, LengthRequired, environ

pytestmark = [pytest.mark.rule("Q1"), pytest.mark.timeout(60)]


class Protocol:
    """The server's end of one request: a body in pieces, and what was answered."""

    def __init__(self, *pieces: bytes, breaks: bool = False) -> None:
        self.pieces = list(pieces)
        self.sent: list[bytes] = []
        self.streamed = False
        self._breaks = breaks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self.pieces:
            yield self.pieces.pop(0)

    async def __call__(self) -> bytes:
        return b"".join(self.pieces)

    def response_bytes(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.sent.append(body)

    def response_stream(self, status: int, headers: list[tuple[str, str]]) -> Any:
        self.streamed = True
        return SimpleNamespace(send_bytes=self._send)

    async def _send(self, piece: bytes) -> None:
        if self._breaks:
            raise RuntimeError("the client has gone")
        self.sent.append(piece)


class Answer:
    """A WSGI answer that knows by whom it was given back."""

    def __init__(self, *pieces: bytes, streaming: bool = False) -> None:
        self.pieces = pieces
        self.streaming = streaming
        self.closed: list[int] = []

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.pieces)

    def close(self) -> None:
        self.closed.append(threading.get_ident())


class Headers(dict[str, str]):
    """As the server gives them: lower case, and one name may come twice."""

    def __init__(self, pairs: tuple[tuple[str, str], ...]) -> None:
        super().__init__(pairs)
        self._pairs = pairs

    def items(self) -> Any:
        return self._pairs


def scope(*headers: tuple[str, str], **changes: Any) -> Any:
    values = {"method": "POST", "path": "/x", "query_string": "", "server": "127.0.0.1:80", "http_version": "1.1",
              "client": "127.0.0.1:1", "scheme": "http", "authority": None}  # fmt: skip
    return SimpleNamespace(headers=Headers(headers), **{**values, **changes})


def served(application: Callable[..., Any], protocol: Protocol, request: Any) -> Protocol:
    """One request through the bridge, on a thread beside the loop."""

    async def serve() -> None:
        bridge = Bridge(application)
        body = await bridge.receive(request, protocol)
        await asyncio.to_thread(bridge.serve, asyncio.get_running_loop(), request, protocol, body)

    asyncio.run(asyncio.wait_for(serve(), 20))
    return protocol


def answering(answer: Answer, seen: Callable[[dict[str, Any]], object] = lambda _: None) -> Callable[..., Answer]:
    def application(given: dict[str, Any], start_response: Any) -> Answer:
        seen(given)
        start_response("200 OK", [("X", "y")])
        return answer

    return application


@pytest.mark.parametrize("streaming", [False, True])
def test_an_answer_is_given_back_once_by_the_thread_that_made_it(streaming: bool) -> None:
    answer, made = Answer(b"a", b"b", streaming=streaming), []
    done = served(answering(answer, lambda _: made.append(threading.get_ident())), Protocol(), scope())
    assert answer.closed == made
    assert b"".join(done.sent) == b"ab"
    assert done.streamed is streaming


def test_an_answer_whose_client_has_gone_is_given_back_too() -> None:
    answer = Answer(b"a", b"b", streaming=True)
    with pytest.raises(RuntimeError, match="gone"):
        served(answering(answer), Protocol(breaks=True), scope())
    assert len(answer.closed) == 1


def test_a_streamed_answer_is_never_joined() -> None:
    sent = served(answering(Answer(b"one", b"two", streaming=True)), Protocol(), scope()).sent
    assert sent == [b"one", b"two"]


def test_a_large_body_is_fetched_as_it_is_read_and_ends() -> None:
    protocol = Protocol(*[b"x" * 65_536] * 20)
    left: list[int] = []

    def read(given: dict[str, Any]) -> None:
        stream = given["wsgi.input"]
        assert stream.read(10) == b"x" * 10
        left.append(len(protocol.pieces))
        assert len(stream.read(20 * 65_536 - 10)) == 20 * 65_536 - 10
        assert stream.read(1) == b""

    length = ("content-length", str(20 * 65_536))
    served(answering(Answer(), read), protocol, scope(length))
    assert left[0] >= 18, "it was read before it was wanted"


@pytest.mark.parametrize("two", [True, False])
def test_a_body_without_a_length_is_read_where_it_may_come(two: bool) -> None:
    seen: list[tuple[bytes, str]] = []

    def look(given: dict[str, Any]) -> None:
        seen.append((given["wsgi.input"].read(), given["CONTENT_LENGTH"]))

    request = scope(http_version="2") if two else scope(("transfer-encoding", "chunked"))
    served(answering(Answer(), look), Protocol(b"ab", b"c"), request)
    assert seen == [(b"abc", "3")]


def test_a_body_without_a_length_is_small() -> None:
    with pytest.raises(LengthRequired):
        served(answering(Answer()), Protocol(b"x" * SMALL_BYTES, b"x"), scope(("transfer-encoding", "chunked")))


def test_what_has_neither_length_nor_chunks_has_no_body() -> None:
    protocol = Protocol(b"of the next request")
    served(answering(Answer(), lambda given: given["wsgi.input"].read()), protocol, scope())
    assert protocol.pieces


def test_headers_that_come_twice() -> None:
    twice = (("cookie", "a=1"), ("cookie", "b=2"), ("x-forwarded-for", "1.1.1.1"), ("x-forwarded-for", "2.2.2.2"))
    found = environ(scope(*twice), None)
    assert found["HTTP_COOKIE"] == "a=1; b=2"
    assert found["HTTP_X_FORWARDED_FOR"] == "1.1.1.1,2.2.2.2"


def test_the_host_of_the_newer_protocol() -> None:
    assert environ(scope(authority="fleet.example"), None)["HTTP_HOST"] == "fleet.example"
    assert environ(scope(("host", "one"), authority="two"), None)["HTTP_HOST"] == "one"


def test_a_path_is_its_bytes() -> None:
    path = "/größe/100%25/a%2Fb"
    assert environ(scope(path=path), None)["PATH_INFO"] == path.encode().decode("latin-1")
