"""A PostgreSQL 15 of a test's own, run by Debian's `pg_ctl` as an ordinary user: for tests that restart or kill it."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from django.db import connection, connections

from controlplane.embedded.postgres import ROLE_SETTINGS

BINARIES = Path("/usr/lib/postgresql/15/bin")
ROOT = Path(__file__).resolve().parent.parent
ROLE = "wharfinger"


class OwnServer:
    """Started, migrated, and restarted at will."""

    def __init__(self, place: Path) -> None:
        self._data = place / "data"
        self._user = pwd.getpwnam("postgres") if os.geteuid() == 0 else None
        if self._user is not None:
            os.chown(place, self._user.pw_uid, self._user.pw_gid)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"postgresql://{ROLE}@127.0.0.1:{self.port}/{ROLE}"

    def _run(self, *command: str) -> None:
        user = self._user
        as_user = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"] if user else []
        binary, *options = command
        done = subprocess.run(
            [*as_user, str(BINARIES / binary), "-D", str(self._data), *options],
            cwd=self._data.parent,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def start(self) -> None:
        self._run("initdb", "-U", "postgres", "--auth=trust", "--locale=C.UTF-8", "--encoding=UTF8")
        self._options = (
            f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c max_connections=60"
        )
        self.come_back()
        admin_url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        with psycopg.connect(admin_url, autocommit=True) as admin:
            admin.execute(f"CREATE ROLE {ROLE} LOGIN".encode())
            for name, value in ROLE_SETTINGS.items():
                admin.execute(f"ALTER ROLE {ROLE} SET {name} = '{value}'".encode())
            admin.execute(f"CREATE DATABASE {ROLE} OWNER {ROLE}".encode())
        environment = {**os.environ, "DATABASE_URL": self.url, "DATABASE_DIRECT_URL": "", "SECRET_KEY": "x"}
        migrate = [sys.executable, "manage.py", "migrate", "--no-input", "-v", "0"]
        subprocess.run(migrate, cwd=ROOT, env=environment, check=True)

    def crash_and_start(self) -> None:
        """Every session dies, nothing is flushed that was not committed, the log is replayed."""
        self._run("pg_ctl", "-m", "immediate", "-w", "-t", "120", "-l", str(self._data / "log"), "restart")

    def come_back(self) -> None:
        """Start, at first or after `stop`."""
        self._run("pg_ctl", "-o", self._options, "-l", str(self._data / "log"), "-w", "-t", "120", "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-m", "immediate", "-w", "stop")


@contextmanager
def own_server() -> Iterator[OwnServer]:
    place = Path(tempfile.mkdtemp(prefix="wharfinger-own."))
    place.chmod(0o711)
    server = OwnServer(place)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(place)


@contextmanager
def django_on(server: OwnServer) -> Iterator[None]:
    """Django in this process uses that server meanwhile."""
    connections.close_all()
    known = connection.settings_dict
    before = dict(known)
    known.update(HOST="127.0.0.1", PORT=str(server.port), NAME=ROLE, USER=ROLE, PASSWORD="")
    try:
        yield
    finally:
        connections.close_all()
        known.update(before)
