"""The guarantees through PgBouncer in transaction mode: the same tests, in a pytest of their own behind the pooler.

What a test opens by itself (a transaction held open, an observer, a killer of sessions) goes to the server directly;
Django, its threads and its processes go through the pooler, where every transaction may have another server process.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from tests import ledger
from tests.leadership.pooler import pgbouncer

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.xdist_group("pooler")]

ROOT = Path(__file__).resolve().parents[2]
POOL = 20
"""Enough for the attack's processes and the calls that wait for each other; far fewer than there are clients."""

SUBSET = (
    "tests/races/test_permit_races.py",
    "tests/races/test_run_races.py",
    "tests/recovery/test_holds.py",
)
EVERYTHING = ("tests/admission", "tests/races", "tests/recovery", "tests/leadership")


def behind_the_pooler(folder: Path, tests: tuple[str, ...], seconds: float) -> int:
    """Run these tests through the pooler; how many passed. All must."""
    name = f"wharfinger_pooled_{uuid4().hex[:8]}"
    direct = ledger.database_url()
    with pgbouncer(direct, folder, POOL, all_databases=True) as pooled:
        given = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "CONTROLPLANE_"))}
        environment = {
            **given,
            "DATABASE_URL": urlunsplit(urlsplit(pooled)._replace(path=f"/{name}")),
            "DATABASE_DIRECT_URL": urlunsplit(urlsplit(direct)._replace(path=f"/{name}")),
        }
        # The pooler keeps idle sessions of a database, which would hinder its end: it stays, and goes by force below.
        command = [sys.executable, "-m", "pytest", "--reuse-db", "-m", "not soak", "-q", "-p", "no:cacheprovider"]
        try:
            done = subprocess.run(
                [*command, *tests],
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
        finally:
            drop(direct, f"test_{name}")
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None, done.stdout
    print(done.stdout.splitlines()[-1])
    return int(passed[1])


def drop(url: str, name: str) -> None:
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.mark.rule("G9", "A4", "A5", "A6", "A8")
def test_races_over_permits_and_runs_hold_through_a_transaction_pooler(database_url: str, tmp_path: Path) -> None:
    assert behind_the_pooler(tmp_path, SUBSET, 170) > 45


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.rule("G9", "A4", "A5", "A6", "A8", "L1", "L6", "R8")
def test_admission_races_recovery_and_leadership_hold_through_a_transaction_pooler(
    database_url: str, tmp_path: Path
) -> None:
    assert behind_the_pooler(tmp_path, EVERYTHING, 3500) > 400
