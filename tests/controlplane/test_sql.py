"""The transport of named statements: a session that lives is not asked whether it does, one that died is replaced."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import close_old_connections, connection

from controlplane.core import sql
from tests import ledger

pytestmark = pytest.mark.django_db(transaction=True)

OWN = "SELECT pg_backend_pid() AS pid"


@pytest.fixture
def checked() -> Any:
    """Health checks as in a server: once a request, here once for each `close_old_connections`."""
    connection.close()
    before = connection.settings_dict["CONN_HEALTH_CHECKS"]
    connection.settings_dict["CONN_HEALTH_CHECKS"] = True
    yield
    connection.settings_dict["CONN_HEALTH_CHECKS"] = before
    connection.close()


def backend() -> int:
    """The server process that serves the next request's first statement."""
    close_old_connections()
    row = sql.one(OWN)
    assert row is not None
    return int(row["pid"])


def watched(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What each health check said."""
    asked: list[bool] = []
    ask = connection.is_usable

    def noted() -> bool:
        asked.append(ask())
        return asked[-1]

    monkeypatch.setattr(connection, "is_usable", noted)
    return asked


def test_a_session_that_was_just_used_is_not_asked_again(checked: None, monkeypatch: pytest.MonkeyPatch) -> None:
    first, asked = backend(), watched(monkeypatch)
    assert backend() == first
    assert asked == []


def test_one_that_was_silent_for_long_is_asked(checked: None, monkeypatch: pytest.MonkeyPatch) -> None:
    first, asked = backend(), watched(monkeypatch)
    monkeypatch.setattr(sql, "PROOF_SECONDS", -1.0)
    assert backend() == first
    assert asked == [True]


def test_one_that_was_ended_meanwhile_is_replaced_and_nobody_notices(
    checked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, asked = backend(), watched(monkeypatch)
    with ledger.connected() as operator:
        operator.execute("SELECT pg_terminate_backend(%s)", (first,))
        alive = "SELECT FROM pg_stat_activity WHERE pid = %s"
        ledger.until(lambda: not operator.execute(alive, (first,)).fetchall(), "the session goes")
    assert backend() != first
    assert asked == [False]
