"""PgBouncer in transaction mode in front of the tests' server."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from tests.leadership.world import until

BINARY = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

CONFIGURATION = """
[databases]
{name} = host={host} port={port} user={user} {password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
auth_type = any
pool_mode = transaction
default_pool_size = {connections}
ignore_startup_parameters = extra_float_digits,options
server_login_retry = 1
unix_socket_dir =
"""


@contextmanager
def pgbouncer(url: str, folder: Path, connections: int = 4, *, all_databases: bool = False) -> Iterator[str]:
    """The address of the same database through the pooler. So many server connections serve the test's processes."""
    assert BINARY is not None, "PgBouncer is not installed; deploy/test-machine.sh does it"
    target = urlsplit(url)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        own_port = probe.getsockname()[1]
    name = target.path.lstrip("/")
    file = folder / "pgbouncer.ini"
    password = f"password={target.password}" if target.password else ""
    file.write_text(
        CONFIGURATION.format(
            name="*" if all_databases else name,
            host=target.hostname,
            port=target.port,
            user=target.username,
            password=password,
            own_port=own_port,
            connections=connections,
        )
    )
    for place in (folder, *folder.parents[:2]):
        place.chmod(place.stat().st_mode | 0o055)
    as_user = ["-u", "nobody"] if os.geteuid() == 0 else []
    log = (folder / "pgbouncer.log").open("ab")
    process = subprocess.Popen([BINARY, *as_user, str(file)], stdout=log, stderr=log)
    pooled = f"postgresql://{target.username}@127.0.0.1:{own_port}/{name}"
    try:
        until(lambda: _answers(pooled), f"PgBouncer does not answer: {(folder / 'pgbouncer.log').read_text()}", 10)
        yield pooled
    finally:
        process.terminate()
        process.wait(10)
        log.close()


def logins(folder: Path) -> int:
    """How many sessions clients opened: whoever was to go through the pooler must be among them."""
    return (folder / "pgbouncer.log").read_text().count("login attempt")


def _answers(url: str) -> bool:
    try:
        with psycopg.connect(url, prepare_threshold=None) as connection:
            return connection.execute("SELECT 1").fetchone() == (1,)
    except psycopg.OperationalError:
        return False
