"""`manage.py` and a database that does not answer, or goes away in the middle: a sentence, never a stack."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests import ledger

MANAGE = Path(__file__).resolve().parents[2] / "manage.py"

pytestmark = pytest.mark.rule("O2")


def begun(url: str, *words: str) -> subprocess.Popen[str]:
    env = {**os.environ, "DATABASE_URL": url, "DATABASE_DIRECT_URL": ""}
    return subprocess.Popen([sys.executable, str(MANAGE), *words], env=env, stderr=subprocess.PIPE, text=True)


def said(running: subprocess.Popen[str]) -> str:
    _, err = running.communicate(timeout=60)
    assert running.returncode == 1
    assert "Traceback" not in err
    return err


def test_a_database_that_does_not_answer_is_said_in_a_sentence() -> None:
    err = said(begun("postgresql://nobody@127.0.0.1:1/none", "step_down", "--reason", "a test"))
    assert err.startswith("error: the database does not answer")
    assert "Check DATABASE_URL" in err


@pytest.mark.django_db(transaction=True)
def test_one_that_goes_away_in_the_middle_too() -> None:
    """Its session is ended while its statement waits for a lock."""
    url = ledger.application_url()
    waiting = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with psycopg.connect(url) as locking, psycopg.connect(url, autocommit=True) as looking:
        locking.execute("LOCK TABLE leadership_lease IN ACCESS EXCLUSIVE MODE")
        running = begun(url, "step_down", "--reason", "a test")
        ledger.until(lambda: looking.execute(waiting).fetchall() or running.poll() is not None)
        looking.execute(f"SELECT pg_terminate_backend(w.pid) FROM ({waiting}) w")  # noqa: S608 - two constants
        err = said(running)
    assert "may have been done or not" in err
