"""The database connection that the environment names."""

from __future__ import annotations

import environ
import psycopg
import pytest
from django.db import connection

from controlplane.core.environment import PATIENCE, database


def options(monkeypatch: pytest.MonkeyPatch, url: str) -> dict[str, object]:
    monkeypatch.setenv("DATABASE_URL", url)
    found: dict[str, object] = database(environ.Env())["OPTIONS"]
    return found


def test_a_server_that_vanished_cannot_hold_a_thread_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    found = options(monkeypatch, "postgresql://u@127.0.0.1:5432/d")
    assert PATIENCE.items() <= found.items()
    assert all(0 < int(value) <= 30_000 for value in PATIENCE.values())


def test_what_the_address_says_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    found = options(monkeypatch, "postgresql://u@127.0.0.1:5432/d?connect_timeout=3&sslmode=require")
    assert (str(found["connect_timeout"]), found["sslmode"]) == ("3", "require")
    assert found["tcp_user_timeout"] == PATIENCE["tcp_user_timeout"]


@pytest.mark.django_db
def test_the_driver_takes_them() -> None:
    connection.ensure_connection()
    raw = connection.connection
    assert isinstance(raw, psycopg.Connection)
    given = raw.info.get_parameters()  # without what equals the default of libpq, as `keepalives` does
    assert {name: given[name] for name in PATIENCE if name != "keepalives"} == {
        name: str(value) for name, value in PATIENCE.items() if name != "keepalives"
    }
