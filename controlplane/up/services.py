"""PostgreSQL and Valkey: the embedded ones, or those that the environment names."""

from __future__ import annotations

import os
import secrets
import shlex
import subprocess
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg

from controlplane.embedded.directories import EmbeddedError, Home
from controlplane.embedded.postgres import EmbeddedPostgres
from controlplane.embedded.service import EmbeddedService
from controlplane.embedded.valkey import EmbeddedValkey
from controlplane.processes import ProcessError
from controlplane.supervisor import back_off
from controlplane.up.options import Execution, UpError

ANSWER_SECONDS = 10
OF_A_FLEET = {"DATABASE_URL", "DATABASE_DIRECT_URL", "REDIS_URL", "SECRET_KEY", "SECRET_KEY_FILE", "DOCKER_HOST"}


@dataclass(frozen=True, slots=True)
class ServiceEvent:
    """An embedded server died, or could not be started anew (`error` says why); the next try is due in so long."""

    name: str
    restarts: int
    delay_seconds: float
    error: str = ""


@dataclass(slots=True)
class Services:
    """Started on entry, stopped on exit, in reverse order."""

    home: Home = field(default_factory=Home.open)
    environment: dict[str, str] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    restarts: dict[str, int] = field(default_factory=dict)
    _started: list[EmbeddedService] = field(default_factory=list)
    _due: dict[str, float] = field(default_factory=dict)
    _starting: dict[str, Generator[None, None, str]] = field(default_factory=dict)

    def __enter__(self) -> Self:
        try:
            self._provide("DATABASE_URL", EmbeddedPostgres)
            self._provide("REDIS_URL", EmbeddedValkey)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _provide(self, variable: str, service: type[EmbeddedService]) -> None:
        if url := os.environ.get(variable):
            if service is EmbeddedPostgres:
                _refuse_silent(variable, url)
            self.environment[variable] = url
            self.names.append(f"{variable} as given")
            return
        started = service(self.home)
        started.start()
        self._started.append(started)
        self.environment[variable] = started.url()
        self.names.append(started.title)
        self.restarts[started.folder] = 0

    def revive(self, on_event: Callable[[ServiceEvent], None]) -> None:
        """Start an embedded server that died anew, after a back-off, and again if that fails. Never waits: a start
        goes on from call to call, and everything else must be looked after meanwhile."""
        for service in self._started:
            if service.folder in self._starting:
                self._go_on(service, on_event)
            elif not service.is_running():
                self._bury(service, on_event)

    def _bury(self, service: EmbeddedService, on_event: Callable[[ServiceEvent], None]) -> None:
        name = service.folder
        if name not in self._due:
            self._put_off(service, on_event, "")
        elif time.monotonic() >= self._due[name]:
            del self._due[name]
            self.restarts[name] += 1
            self._starting[name] = _start_anew(service)

    def _go_on(self, service: EmbeddedService, on_event: Callable[[ServiceEvent], None]) -> None:
        name = service.folder
        try:
            next(self._starting[name])
        except StopIteration as end:
            del self._starting[name]
            if end.value:
                self._put_off(service, on_event, end.value)

    def _put_off(self, service: EmbeddedService, on_event: Callable[[ServiceEvent], None], error: str) -> None:
        name = service.folder
        delay = back_off(self.restarts[name] + 1)
        self._due[name] = time.monotonic() + delay
        on_event(ServiceEvent(name, self.restarts[name], delay, error))

    def _stop(self) -> None:
        while self._started:
            self._started.pop().stop()

    def child_environment(self, execution: Execution, port: int) -> dict[str, str]:
        """The environment of every child: ours, plus where things are. Settings that were given win."""
        defaults = {
            "SECRET_KEY": _secret_key(self.home),
            "CONTROLPLANE_EXECUTOR": execution.executor,
            "CONTROLPLANE_IMAGE_ALIASES": execution.image_aliases,
            "CONTROLPLANE_CALLBACK_BASE_URL": f"http://127.0.0.1:{port}",
            "CONTROLPLANE_DRAIN_SECONDS": "10",
            "PYTHONUNBUFFERED": "1",
            "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        }
        return {**defaults, **os.environ, **self.environment, "CONTROLPLANE_EXECUTOR": execution.executor}

    @contextmanager
    def told(self, env: Mapping[str, str]) -> Iterator[Path]:
        """While this fleet is up: a file from which a shell has what `manage.py` must know of it.

        Nobody could guess it: the embedded servers have ports and passwords of their own. Readable by its owner only.
        """
        path = self.home.path / "environment"
        names = sorted(name for name in env if name in OF_A_FLEET or name.startswith("CONTROLPLANE_"))
        text = "".join(f"export {name}={shlex.quote(env[name])}\n" for name in names)
        self.home.write_private(path, text, for_server=False)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)


def _start_anew(service: EmbeddedService) -> Generator[None, None, str]:
    """In steps; returns why it failed, '' when it answers. A full disk, say: a later try may find room."""
    try:
        yield from service.starting()
    except (EmbeddedError, ProcessError, OSError, psycopg.Error, subprocess.SubprocessError) as error:
        try:
            yield from service.stopping()
        except EmbeddedError as worse:
            return str(worse)
        return " ".join(str(error).split())
    return ""


def _refuse_silent(variable: str, url: str) -> None:
    """Said here in a sentence: the first child that needs it would say it with a stack."""
    try:
        psycopg.connect(url, connect_timeout=ANSWER_SECONDS).close()
    except psycopg.Error as error:
        why = " ".join(str(error).split())
        raise UpError(
            f"the database that {variable} names does not answer: {why} Start it or correct the address; "
            f"without {variable} an embedded one is used."
        ) from error


def _secret_key(home: Home) -> str:
    """One key for this home, made at the first start: sessions and tokens outlive a restart."""
    path: Path = home.path / "secret-key"
    if not path.exists():
        home.write_private(path, secrets.token_urlsafe(50), for_server=False)
    return path.read_text().strip()
