"""The database connection that the environment names."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import environ
import psycopg
import pytest
from django.db import connection

from controlplane.core.environment import PATIENCE, database

MANAGE = Path(__file__).resolve().parents[2] / "manage.py"


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


@pytest.mark.rule("X1")
@pytest.mark.parametrize(
    ("variable", "value", "words", "what"),
    [
        ("DATABASE_URL", "mysql://x/y", ["check"], "DATABASE_URL must name a PostgreSQL database"),
        ("CONTROLPLANE_REPLICA_SLOTS", "many", ["check"], "correct or unset it"),
        ("DATABASE_URL", "postgresql://x@127.0.0.1:1/y", ["replica"], "check DATABASE_URL"),
        ("DATABASE_URL", "postgresql://x@127.0.0.1:1/y", ["up", "--executor", "process"], "an embedded one is used"),
        ("WHARFINGER_HOME", "/proc/here", ["up", "--executor", "process"], "Set WHARFINGER_HOME to a directory"),
    ],
)
def test_what_is_wrong_with_the_environment_is_a_sentence_without_a_stack(
    variable: str, value: str, words: list[str], what: str
) -> None:
    with tempfile.TemporaryDirectory(prefix="wharfinger-environment.") as place:
        # The servers' own account has to enter it.
        Path(place).chmod(0o711)
        given = {"SECRET_KEY": "x", "WHARFINGER_HOME": f"{place}/home", variable: value}
        done = run_with(given, words)
    assert done.returncode == 1
    assert what in done.stderr
    assert "Traceback" not in done.stderr


def run_with(given: dict[str, str], words: list[str]) -> subprocess.CompletedProcess[str]:
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME") if name in os.environ}
    port = ["--port", "0"] if words[0] == "up" else []
    return subprocess.run(
        [sys.executable, str(MANAGE), *words, *port],
        env={**kept, **given},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
