"""One real PostgreSQL for the whole test run, and what the tests ask for by name.

Without `DATABASE_URL` the controlling process starts the embedded server before xdist starts its workers, which
inherit the address by the environment. Tests connect through Django's test database, one for each worker.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.conf import settings
from django.db import connections

from controlplane.core.environment import database, environ
from controlplane.embedded import EmbeddedPostgres, EmbeddedValkey, Home

pytest.register_assert_rewrite("tests.ledger")
from tests import emptying, ledger  # noqa: E402 - its assertions are rewritten like those of a test module

os.environ.setdefault("SECRET_KEY", "a secret of the tests, of no use anywhere else")

Server = Any
_STOP = pytest.StashKey[list[Callable[[], None]]]()


def pytest_configure(config: pytest.Config) -> None:
    """Start the database server in the controlling process; workers find it in their environment."""
    from controlplane.core import environment  # noqa: PLC0415 - the settings are read by then

    # The settings were read before any conftest: what stands in the environment now is the key of every child, and
    # of this process too, which encrypts what they decrypt.
    environment.ephemeral.clear()
    settings.SECRET_KEY = os.environ["SECRET_KEY"]
    config.stash[_STOP] = []
    emptying.install()
    if hasattr(config, "workerinput") or os.environ.get("DATABASE_URL") or config.option.collectonly:
        return
    url = _start(EmbeddedPostgres, config.stash[_STOP])
    os.environ["DATABASE_URL"] = url
    _connect_django_to(url)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop what was started here."""
    for stop in reversed(config.stash.get(_STOP, [])):
        stop()


def _start(service: type[Server], stops: list[Callable[[], None]]) -> str:
    """Start an embedded server in a temp directory that its system user may enter; returns its address."""
    place = Path(tempfile.mkdtemp(prefix="wharfinger-tests."))
    place.chmod(0o711)
    server = service(Home.open(place / "home"))
    stops.append(lambda: shutil.rmtree(place))
    server.start()
    stops.append(server.stop)
    return str(server.url())


def _connect_django_to(url: str) -> None:
    """Point this process at the server: pytest-django has read the settings before any conftest was loaded."""
    new = database(environ.Env())
    assert str(new["PORT"]) in url
    settings.DATABASES["default"].update(new)
    connections.settings["default"].update(new)


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """The address of a Redis: `REDIS_URL` where it is set, else an embedded Valkey of this worker's own."""
    if url := os.environ.get("REDIS_URL"):
        yield url
        return
    stops: list[Callable[[], None]] = []
    try:
        yield _start(EmbeddedValkey, stops)
    finally:
        for stop in reversed(stops):
            stop()


@pytest.fixture(scope="session", autouse=True)
def _no_session_outlives_the_tests(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Before the database goes: end what daemon threads of drivers still have open in their last statement."""
    yield
    with django_db_blocker.unblock():
        ledger.end_other_sessions()


@pytest.fixture
def database_url(transactional_db: None) -> str:
    """The address of this worker's test database, for other processes and for connections of their own."""
    return ledger.database_url()


@pytest.fixture
def connect(database_url: str) -> Iterator[Callable[..., psycopg.Connection[Any]]]:
    """Open a raw connection, separate from Django's; it is closed, its transaction undone, after the test."""
    opened: list[psycopg.Connection[Any]] = []

    def open_one(*, autocommit: bool = False) -> psycopg.Connection[Any]:
        opened.append(psycopg.connect(database_url, autocommit=autocommit))
        return opened[-1]

    yield open_one
    for connection in opened:
        connection.close()


@pytest.fixture
def make_tenant(db: None) -> Callable[..., Any]:
    """`make_tenant(quota=3, weight=1)`: a tenant, with a quota if one is given."""
    return ledger.make_tenant


@pytest.fixture
def make_driver(db: None) -> Callable[..., Any]:
    """`make_driver()`: a living replica as a driver; `kind="runner"` for one with a lease."""
    return ledger.make_driver


@pytest.fixture
def submit(db: None) -> Callable[..., list[int]]:
    """`submit(tenant, 3, priority=1)`: the ids of three new queued runs."""
    return ledger.submit
