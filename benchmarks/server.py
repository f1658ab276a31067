"""The server under test: `DATABASE_URL` where it is set, else the embedded one; always a database of its own."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql


@contextlib.contextmanager
def database() -> Iterator[str]:
    """The address of a fresh database, dropped in the end. Call it before Django reads its settings."""
    with _server() as server:
        name = f"wharfinger_bench_{os.getpid()}"
        with psycopg.connect(server, autocommit=True) as admin:
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
        finally:
            with psycopg.connect(server, autocommit=True) as admin:
                admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@contextlib.contextmanager
def _server() -> Iterator[str]:
    if url := os.environ.get("DATABASE_URL"):
        yield url
        return
    from controlplane.embedded import EmbeddedPostgres, Home  # noqa: PLC0415 - not needed beside a server of one's own

    place = Path(tempfile.mkdtemp(prefix="wharfinger-bench."))
    place.chmod(0o711)
    server = EmbeddedPostgres(Home.open(place / "home"))
    server.start()
    try:
        yield server.url()
    finally:
        server.stop()
        shutil.rmtree(place)


def describe(url: str) -> str:
    """One line: machine, versions, what makes commits durable."""
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT current_setting('server_version'), current_setting('fsync'), "
            "current_setting('synchronous_commit'), current_setting('shared_buffers')"
        ).fetchone()
    assert row is not None
    return (
        f"PostgreSQL {row[0].split()[0]} (fsync {row[1]}, synchronous_commit {row[2]}, shared_buffers {row[3]}), "
        f"psycopg {psycopg.__version__}, Python {platform.python_version()}, "
        f"{os.cpu_count()} processors shared by server and clients, load at the start {os.getloadavg()[0]:.1f}"
    )
