"""Parts of kept files over HTTP, and a client that goes on where its connection broke."""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from runners.client import Client
from runners.transport import Unreachable
from tests import ledger
from tests.api.conftest import Caller
from tests.runners.conftest import RunnerCaller, named
from tests.runners.test_artifacts import bring, held, place

__all__ = ["held", "place"]

pytestmark = [pytest.mark.rule("Q8"), pytest.mark.rule("O3")]

DATA = bytes(range(256)) * 40
SIZE = len(DATA)
ETAG = f'"{hashlib.sha256(DATA).hexdigest()}"'


@pytest.fixture
def path(runner: RunnerCaller, held: dict[str, Any]) -> str:
    assert bring(runner, held, "out/a.bin", DATA).status_code == 200
    return f"/runs/{held['run']}/artifacts/out/a.bin"


def fetched(tenant: Caller, path: str, **headers: str) -> Any:
    return tenant.get(path, **{name.replace("_", "-"): value for name, value in headers.items()})


def body(answer: Any) -> bytes:
    return b"".join(answer.streaming_content) if answer.streaming else answer.content


@pytest.mark.parametrize(
    ("asked", "first", "last"),
    [
        ("bytes=0-0", 0, 0),
        ("bytes=0-99", 0, 99),
        ("bytes=100-", 100, SIZE - 1),
        ("bytes=-100", SIZE - 100, SIZE - 1),
        (f"bytes=5-{SIZE * 10}", 5, SIZE - 1),
        (f"bytes=-{SIZE * 10}", 0, SIZE - 1),
        ("Bytes = 7 - 9", 7, 9),
        (f"bytes={SIZE - 1}-{10**17}", SIZE - 1, SIZE - 1),
    ],
)
def test_one_part(tenant: Caller, path: str, asked: str, first: int, last: int) -> None:
    answer = fetched(tenant, path, Range=asked)
    assert answer.status_code == 206
    assert answer["Content-Range"] == f"bytes {first}-{last}/{SIZE}"
    assert answer["Content-Length"] == str(last - first + 1)
    assert body(answer) == DATA[first : last + 1]
    assert (answer["ETag"], answer["Accept-Ranges"]) == (ETAG, "bytes")
    assert answer["Content-Disposition"].startswith("attachment")
    assert "sandbox" in answer["Content-Security-Policy"]


@pytest.mark.parametrize("asked", [f"bytes={SIZE}-", f"bytes={10**17}-{10**17 + 1}", "bytes=-0"])
def test_a_part_behind_the_end(tenant: Caller, path: str, asked: str) -> None:
    answer = fetched(tenant, path, Range=asked)
    assert (answer.status_code, answer["Content-Range"]) == (416, f"bytes */{SIZE}")
    assert answer.json()["stored"] == SIZE


@pytest.mark.parametrize(
    "asked",
    ["", "bytes", "bytes=", "bytes=-", "bytes=5-2", "bytes=0-1,5-6", "lines=0-1", "bytes=a-b", "bytes=0x1-2",
     "bytes=-1-2", "bytes=1 2-3", f"bytes={'9' * 5000}-", f"bytes={'9' * 30}-", "bytes=\uff10-\uff11"],
)  # fmt: skip
def test_what_is_no_single_part_gives_all_of_it(tenant: Caller, path: str, asked: str) -> None:
    answer = fetched(tenant, path, Range=asked)
    assert (answer.status_code, body(answer)) == (200, DATA)
    assert "Content-Range" not in answer


def test_a_part_of_this_very_file_only(tenant: Caller, path: str) -> None:
    assert body(fetched(tenant, path, Range="bytes=1-2", If_Range=ETAG)) == DATA[1:3]
    for other in ('"another"', f"W/{ETAG}", "Wed, 21 Oct 2026 07:28:00 GMT", ""):
        answer = fetched(tenant, path, Range="bytes=1-2", If_Range=other)
        assert (answer.status_code, body(answer)) == (200, DATA)


def test_who_has_it_is_told_so(tenant: Caller, path: str) -> None:
    for tags in (ETAG, f'"x", {ETAG}', f"W/{ETAG}", "*"):
        answer = fetched(tenant, path, If_None_Match=tags)
        assert (answer.status_code, answer.content, answer["ETag"]) == (304, b"", ETAG)
    assert body(fetched(tenant, path, If_None_Match='"another"')) == DATA


def test_an_empty_file_has_no_parts(tenant: Caller, runner: RunnerCaller, held: dict[str, Any]) -> None:
    bring(runner, held, "empty", b"")
    path = f"/runs/{held['run']}/artifacts/empty"
    assert fetched(tenant, path, Range="bytes=0-").status_code == 416
    assert body(fetched(tenant, path)) == b""


def test_nobody_learns_the_size_of_anothers_file(
    stranger: Caller, nobody: Caller, runner: RunnerCaller, path: str
) -> None:
    for caller, status in ((stranger, 404), (nobody, 401), (runner, 401)):
        for headers in ({"Range": "bytes=99999999-"}, {"Range": "bytes=0-1"}, {"If_None_Match": ETAG}):
            answer = fetched(caller, path, **headers)
            assert answer.status_code == status
            assert "Content-Range" not in answer
            assert str(SIZE) not in answer.content.decode()


class Breaking:
    """Passes so many bytes of each answer, then cuts the connection; `asked` are the Range headers it saw."""

    def __init__(self, port: int, most: int) -> None:
        self._target, self._most = port, most
        self.asked: list[bytes] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                near = self._server.accept()[0]
            except OSError:
                return  # closed: the test is over
            with near, socket.create_connection(("127.0.0.1", self._target)) as far:
                head = near.recv(65536)
                self.asked += [line for line in head.split(b"\r\n") if line.lower().startswith(b"range:")]
                far.sendall(head.replace(b"Connection: keep-alive", b"Connection: close"))
                left = self._most
                while left > 0 and (data := far.recv(min(65536, left))):
                    near.sendall(data)
                    left -= len(data)

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(10)


@pytest.fixture
def big(
    live_server: Any, transactional_db: None, tenant: Caller, runner: RunnerCaller, place: Any
) -> Iterator[tuple[int, bytes, Breaking]]:
    """A kept file, and a server that breaks off again and again."""
    ledger.submit(tenant.tenant)
    [given] = runner.claimed()
    runner.post("/runner/starts", {"runs": [named(given)]})
    data = b"0123456789abcdef" * 100_000
    assert bring(runner, given, "big", data).status_code == 200
    breaking = Breaking(int(live_server.url.rpartition(":")[2]), 500_000)
    yield given["run"], data, breaking
    breaking.close()


@pytest.mark.django_db(transaction=True)
def test_a_download_goes_on_where_it_broke_off(tenant: Caller, big: tuple[int, bytes, Breaking]) -> None:
    run, data, server = big
    assert b"".join(Client(server.url, tenant.token).artifact(run, "big")) == data
    assert len(server.asked) == 3
    assert all(line.lower().startswith(b"range: bytes=") for line in server.asked)


@pytest.mark.django_db(transaction=True)
def test_a_download_that_never_gets_far_is_given_up(tenant: Caller, big: tuple[int, bytes, Breaking]) -> None:
    run, _, server = big
    server._most = 20_000
    with pytest.raises(Unreachable, match="broke off"):
        b"".join(Client(server.url, tenant.token).artifact(run, "big"))
