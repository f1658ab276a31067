"""The embedded servers, really run: what they promise about durability, rights, owners and survival."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from controlplane.embedded import EmbeddedError, EmbeddedPostgres, EmbeddedValkey, Home
from controlplane.embedded.service import EmbeddedService
from controlplane.processes import working_in
from controlplane.up.services import ServiceEvent, Services

SERVICES: list[type[EmbeddedService]] = [EmbeddedPostgres, EmbeddedValkey]
ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def place_for_servers() -> Iterator[Path]:
    """A directory outside of pytest's own temp directory, which no other user may enter."""
    place = Path(tempfile.mkdtemp(prefix="wharfinger-test."))
    place.chmod(0o711)
    yield place
    shutil.rmtree(place)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    with place_for_servers() as place:
        monkeypatch.setenv("WHARFINGER_HOME", str(place / "home"))
        yield Home.open()


@pytest.fixture
def postgres(home: Home) -> Iterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(home)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def valkey(home: Home) -> Iterator[EmbeddedValkey]:
    server = EmbeddedValkey(home)
    server.start()
    yield server
    server.stop()


def value(server: EmbeddedPostgres, statement: str) -> object:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        row = connection.execute(statement.encode()).fetchone()
        return row[0] if row else None


def do(server: EmbeddedPostgres, statement: str) -> None:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(statement.encode())


def command(server: EmbeddedValkey, *lines: str) -> str:
    """Send inline commands and return the raw replies: one module only may import the Redis client."""
    with socket.create_connection(("127.0.0.1", server.instance.port), timeout=5) as connection:
        connection.sendall("\r\n".join([f"AUTH {server.instance.password}", *lines, "QUIT", ""]).encode())
        return b"".join(iter(lambda: connection.recv(4096), b"")).decode()


def ended(directory: Path) -> None:
    deadline = time.monotonic() + 20
    while working_in(directory):
        assert time.monotonic() < deadline, f"still running: {working_in(directory)}"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("fsync", "on"),
        ("synchronous_commit", "on"),
        ("max_connections", "200"),
        ("shared_buffers", "256MB"),
        ("statement_timeout", "30s"),
        ("lock_timeout", "5s"),
        ("idle_in_transaction_session_timeout", "10s"),
        ("password_encryption", "scram-sha-256"),
        ("listen_addresses", "127.0.0.1"),
    ],
)
def test_postgres_is_set_as_promised(shared_postgres: EmbeddedPostgres, setting: str, expected: str) -> None:
    assert value(shared_postgres, f"SHOW {setting}") == expected


@pytest.fixture(scope="module")
def shared_postgres() -> Iterator[EmbeddedPostgres]:
    """One server for the tests that only read."""
    with place_for_servers() as place:
        server = EmbeddedPostgres(Home.open(place / "home"))
        server.start()
        yield server
        server.stop()


def test_postgres_is_eighteen_in_utf8(shared_postgres: EmbeddedPostgres) -> None:
    assert str(value(shared_postgres, "SHOW server_version")).startswith("18.")
    assert value(shared_postgres, "SHOW server_encoding") == "UTF8"


def test_the_role_is_ordinary_owns_its_database_and_makes_databases(shared_postgres: EmbeddedPostgres) -> None:
    assert value(shared_postgres, "SELECT rolsuper FROM pg_roles WHERE rolname = current_user") is False
    assert (
        value(shared_postgres, "SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = 'wharfinger'")
        == "wharfinger"
    )
    with psycopg.connect(shared_postgres.url(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE of_a_test")
        connection.execute("DROP DATABASE of_a_test")


def test_a_wrong_password_is_refused(shared_postgres: EmbeddedPostgres) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(shared_postgres.url().replace(shared_postgres.instance.password, "guess"))


@pytest.mark.rule("P4")
def test_valkey_is_durable_and_never_evicts(valkey: EmbeddedValkey) -> None:
    settings = command(valkey, "CONFIG GET appendonly", "CONFIG GET appendfsync", "CONFIG GET maxmemory-policy")
    assert [word for word in settings.split() if word in {"yes", "everysec", "noeviction"}] == [
        "yes",
        "everysec",
        "noeviction",
    ]
    assert valkey.ping()


def test_valkey_asks_for_its_password(valkey: EmbeddedValkey) -> None:
    with socket.create_connection(("127.0.0.1", valkey.instance.port), timeout=5) as connection:
        connection.sendall(b"GET key\r\n")
        assert connection.recv(512).startswith(b"-NOAUTH")


def test_postgres_keeps_data_and_address_over_a_restart(postgres: EmbeddedPostgres) -> None:
    before = postgres.url()
    do(postgres, "CREATE TABLE kept AS SELECT 7 AS number")
    postgres.stop()
    assert not working_in(postgres.data)
    postgres.start()
    assert (postgres.url(), value(postgres, "SELECT number FROM kept")) == (before, 7)


def test_valkey_keeps_data_over_a_restart(valkey: EmbeddedValkey) -> None:
    command(valkey, "HSET holders token 1")
    valkey.stop()
    valkey.start()
    assert "$1\r\n1" in command(valkey, "HGET holders token")


def test_postgres_comes_back_after_kill_nine_with_what_was_committed(postgres: EmbeddedPostgres) -> None:
    do(postgres, "CREATE TABLE kept AS SELECT 7 AS number")
    assert postgres.pid is not None
    with psycopg.connect(postgres.url()) as client:
        os.kill(postgres.pid, signal.SIGKILL)
        while postgres.is_running():
            time.sleep(0.02)
        postgres.start()
        with pytest.raises(psycopg.OperationalError):
            client.execute("SELECT 1")
    assert value(postgres, "SELECT number FROM kept") == 7


def test_valkey_comes_back_after_kill_nine(valkey: EmbeddedValkey) -> None:
    command(valkey, "HSET holders token 1")
    time.sleep(1.5)  # everysec: what is older than a second is on the disk
    assert valkey.pid is not None
    os.kill(valkey.pid, signal.SIGKILL)
    while valkey.is_running():
        time.sleep(0.02)
    valkey.start()
    assert "$1\r\n1" in command(valkey, "HGET holders token")


@pytest.mark.parametrize("service", SERVICES)
def test_a_second_owner_is_refused_and_told_who_the_first_is(home: Home, service: type[EmbeddedService]) -> None:
    first, second = service(home), service(home)
    first.start()
    try:
        with pytest.raises(EmbeddedError, match=f"already run by process {os.getpid()}"):
            second.start()
        assert first.is_running()
    finally:
        first.stop()
    second.start()
    second.stop()


@pytest.mark.parametrize("service", SERVICES)
def test_the_server_ends_with_a_killed_owner_and_the_next_one_starts(
    home: Home, service: type[EmbeddedService]
) -> None:
    program = (
        f"from controlplane.embedded import {service.__name__} as Service; import time\n"
        "server = Service(); server.start(); print('up', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"up\n"
        owner.kill()
    server = service(home)
    ended(server.data)
    server.start()
    server.stop()


@pytest.mark.parametrize("service", SERVICES)
def test_a_server_that_outlived_its_owner_is_stopped_first(home: Home, service: type[EmbeddedService]) -> None:
    """However it came about: the server runs, and nobody holds the lock."""
    forgotten = service(home)
    forgotten.start()
    old = forgotten.pid
    forgotten._lock.free()
    server = service(home)
    server.start()
    try:
        assert not forgotten.is_running()
        assert server.pid != old
    finally:
        server.stop()


@pytest.mark.parametrize("service", SERVICES)
def test_a_stale_pid_file_with_a_reused_number_does_not_matter(home: Home, service: type[EmbeddedService]) -> None:
    server = service(home)
    server.start()
    pid_file, text = server._pid_file(), server._pid_file().read_text()
    server.stop()
    stranger = subprocess.Popen(
        ["sleep", "60"], user=home.account.uid if home.account else None, start_new_session=True
    )
    try:
        pid_file.write_text(text.replace(text.split()[0], str(stranger.pid), 1))
        home.give(pid_file)
        server.start()
        assert server.is_running()
        assert stranger.poll() is None
    finally:
        server.stop()
        stranger.kill()
        stranger.wait()


def test_a_taken_port_is_replaced(home: Home) -> None:
    server = EmbeddedValkey(home)
    server.start()
    first = server.instance.port
    server.stop()
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind(("127.0.0.1", first))
        squatter.listen()
        server.start()
        assert server.instance.port != first
        server.stop()


@pytest.mark.parametrize("service", SERVICES)
def test_nobody_else_can_read_the_data_or_the_passwords(home: Home, service: type[EmbeddedService]) -> None:
    server = service(home)
    server.start()
    try:
        private = [server.directory, server.data, server.directory / "instance.json", server.directory / "owner.lock"]
        assert [path.stat().st_mode & 0o077 for path in private] == [0] * len(private)
        assert home.path.stat().st_mode & 0o027 == 0
    finally:
        server.stop()


def test_software_of_a_closed_directory_is_copied_once_and_the_directory_stays_closed(
    home: Home, tmp_path: Path
) -> None:
    closed = tmp_path / "closed"
    (closed / "bin").mkdir(parents=True)
    (closed / "bin" / "tool").write_text("#!/bin/sh\n")
    (closed / "bin" / "tool").chmod(0o700)
    closed.chmod(0o700)
    found = home.software(closed, "tool-1", ["bin"])
    assert closed.stat().st_mode & 0o777 == 0o700
    if home.account is None:
        assert found == closed
        return
    assert found == home.path / "software" / "tool-1"
    assert (found / "bin" / "tool").stat().st_mode & 0o777 == 0o755
    stamp = found.stat().st_ino
    assert home.software(closed, "tool-1", ["bin"]).stat().st_ino == stamp


def test_a_directory_with_other_files_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    mode = tmp_path.stat().st_mode
    monkeypatch.setenv("WHARFINGER_HOME", str(tmp_path))
    with pytest.raises(EmbeddedError, match="holds other files"):
        Home.open()
    assert tmp_path.stat().st_mode == mode


ORDINARY = """
import psycopg
from controlplane.embedded import EmbeddedPostgres, EmbeddedValkey, Home
home = Home.open()
assert home.account is None
postgres, valkey = EmbeddedPostgres(home), EmbeddedValkey(home)
postgres.start(); valkey.start()
print(psycopg.connect(postgres.url()).execute("SELECT 42").fetchone()[0], valkey.ping())
valkey.stop(); postgres.stop()
"""


def test_an_ordinary_user_runs_both() -> None:
    """As `nobody` when we are root. May read all files, since this checkout may lie in a closed directory; no more."""
    user = pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    drop = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    # The last one keeps the right for access(2) too, by which initdb looks for its own binaries.
    drop += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search", "--securebits=+no_setuid_fixup", "--"]
    with place_for_servers() as place:
        os.chown(place, user.pw_uid, user.pw_gid)
        done = subprocess.run(
            [*(drop if os.geteuid() == 0 else []), sys.executable, "-c", ORDINARY],
            cwd=ROOT,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(place),
                "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
            },
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert (done.returncode, done.stdout.split()) == (0, ["42", "True"]), done.stderr


def services_of(server: EmbeddedService) -> Services:
    return Services(server.home, restarts={server.folder: 0}, _started=[server])


def revived(services: Services, told: list[ServiceEvent], done: Callable[[], bool]) -> float:
    """Look after them until then; the longest that one look took."""
    longest, deadline = 0.0, time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline, f"it did not happen in time: {told}"
        began = time.monotonic()
        services.revive(told.append)
        longest = max(longest, time.monotonic() - began)
        time.sleep(0.02)
    return longest


@pytest.mark.rule("X2")
def test_a_restart_that_fails_is_told_and_tried_again(valkey: EmbeddedValkey) -> None:
    services, told = services_of(valkey), list[ServiceEvent]()
    address, log = valkey.data / "appendonlydir", valkey.data / "appendonly.away"
    assert valkey.pid is not None
    os.kill(valkey.pid, signal.SIGKILL)
    ended(valkey.data)
    address.rename(log)
    address.write_text("no directory")
    revived(services, told, lambda: any(event.error for event in told))
    failed = next(event for event in told if event.error)
    assert "ended while it was starting" in failed.error
    assert (failed.name, failed.restarts) == ("valkey", 1)
    assert failed.delay_seconds > 0
    address.unlink()
    log.rename(address)
    revived(services, told, lambda: valkey.is_running() and valkey.ping())
    assert services.restarts["valkey"] >= 2


@pytest.mark.rule("X2")
def test_a_restart_holds_up_nothing_else(valkey: EmbeddedValkey, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server comes up and does not answer: what looks after the other processes goes on meanwhile."""
    services, told = services_of(valkey), list[ServiceEvent]()
    silent = True
    answers = valkey._answers
    monkeypatch.setattr(valkey, "_answers", lambda instance: not silent and answers(instance))
    assert valkey.pid is not None
    os.kill(valkey.pid, signal.SIGKILL)
    ended(valkey.data)
    looks = 0

    def is_up_for_a_while() -> bool:
        nonlocal looks
        looks += valkey.is_running()
        return looks > 20

    assert revived(services, told, is_up_for_a_while) < 1
    silent = False
    revived(services, told, lambda: not services._starting)
    assert [event.error for event in told] == [""]
