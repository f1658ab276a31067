"""Single permits: claim + release pairs a second through our public functions, against bare psycopg.

Bare psycopg sends the same two statements on an autocommit connection with the driver's own defaults (server-side
binding, prepared after five executions). Both are closed loops in the same processes, in turns.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import django
import psycopg
from django.apps import apps

if not apps.ready:
    django.setup()

from django.db import connection

from admission.services.permits import claim_permit, release_permit
from admission.sql import permits as sql
from benchmarks.report import Row, interleaved, median_ratio
from tests.ledger import make_tenant

TENANTS = 1000
LIMIT = 100
BAR = 0.8


class Rig:
    """Processes that wait for a word, (variant, tenants, seconds), and answer with the number of pairs."""

    def __init__(self, count: int, url: str) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self._answers = context.Queue()
        self._barrier = context.Barrier(count)
        self._words = [context.SimpleQueue() for _ in range(count)]
        self._processes = [
            context.Process(target=_serve, args=(url, n, words, self._answers, self._barrier), daemon=True)
            for n, words in enumerate(self._words)
        ]
        for process in self._processes:
            process.start()

    def rate(self, variant: str, tenants: list[int], seconds: float) -> float:
        """Pairs a second of all processes together."""
        for words in self._words:
            words.put((variant, tenants, seconds))
        return sum(self._answers.get(timeout=seconds + 60) for _ in self._words) / seconds

    def compare(self, tenants: list[int], rounds: int, seconds: float) -> tuple[list[float], list[float]]:
        """Ours and bare psycopg in turns."""
        return interleaved(
            rounds, lambda: self.rate("ours", tenants, seconds), lambda: self.rate("bare", tenants, seconds)
        )

    def stop(self) -> None:
        """Let the processes end."""
        for words in self._words:
            words.put(None)
        for process in self._processes:
            process.join(30)


def _serve(url: str, number: int, words: Any, answers: Any, barrier: Any) -> None:
    connection.settings_dict["NAME"] = url.rpartition("/")[2]
    bare = psycopg.connect(url, autocommit=True)
    pairs = {"ours": _ours(number), "bare": _bare(number, bare)}
    dice = random.Random(number)  # noqa: S311 - spreads load
    while (word := words.get()) is not None:
        variant, tenants, seconds = word
        pair = pairs[variant]
        for _ in range(20):  # connections, plans and caches are warm before the clock runs
            pair(dice.choice(tenants))
        barrier.wait()
        done, until = 0, time.perf_counter() + seconds
        while time.perf_counter() < until:
            pair(dice.choice(tenants))
            done += 1
        answers.put(done)
    bare.close()
    connection.close()


def _ours(number: int) -> Callable[[int], None]:
    holder = f"ext:ours-{number}-{os.getpid()}"

    def pair(tenant: int) -> None:
        claim_permit(holder, tenant_id=tenant)
        release_permit(holder, tenant_id=tenant)

    return pair


def _bare(number: int, bare: psycopg.Connection[Any]) -> Callable[[int], None]:
    holder = f"ext:bare-{number}-{os.getpid()}"
    claim, release = sql.CLAIM_PERMIT.encode(), sql.RELEASE_PERMIT.encode()

    def pair(tenant: int) -> None:
        given = {
            "holder": holder,
            "tenant_id": tenant,
            "scope": "tenant",
            "key": str(tenant),
            "weight": 1,
            "lapse_seconds": 1800.0,
            "driver_name": "",
        }
        bare.execute(claim, given).fetchall()
        bare.execute(release, given).fetchall()

    return pair


def measure(url: str, *, rounds: int, seconds: float) -> list[Row]:
    """Four rows: 1 and 8 processes, one hot tenant and a thousand."""
    tenants = [make_tenant(LIMIT).pk for _ in range(TENANTS)]
    _vacuum()
    found = []
    for count in (1, 8):
        rig = Rig(count, url)
        for name, keys in (("one hot tenant", tenants[:1]), ("1,000 tenants", tenants)):
            ours, bare = rig.compare(keys, rounds, seconds)
            ratio, spread = median_ratio(ours, bare)
            beside = _pgbench(url, count, keys, seconds)
            found.append(
                Row(
                    f"claim + release of one permit, {count} process{'es' * (count > 1)}, {name}",
                    ratio,
                    f"≥ {BAR}",
                    ratio >= BAR,
                    f"{statistics.median(ours):,.0f} pairs/s",
                    f"{statistics.median(bare):,.0f} bare psycopg{beside}",
                    spread,
                )
            )
        rig.stop()
    return found


def _vacuum() -> None:
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE admission_counter, admission_permit, admission_tenant")


def _pgbench(url: str, clients: int, tenants: list[int], seconds: float) -> str:
    """The same statements by pgbench, for information, where the binary exists."""
    newest = sorted(Path("/usr/lib/postgresql").glob("*/bin/pgbench"))
    binary = shutil.which("pgbench") or (str(newest[-1]) if newest else None)
    if binary is None:
        return ""
    values = {
        "holder": "'pgbench-' || :client_id::text",
        "tenant_id": ":t::bigint",
        "scope": "'tenant'",
        "key": ":t::bigint::text",
        "weight": "1",
        "lapse_seconds": "1800",
        "driver_name": "''",
    }
    script = f"\\set t random({tenants[0]}, {tenants[-1]})\n" + "".join(
        (statement % {k: f"({v})" for k, v in values.items()}).replace("\n", " ") + ";\n"
        for statement in (sql.CLAIM_PERMIT, sql.RELEASE_PERMIT)
    )
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
        file.write(script)
        file.flush()
        command = [
            binary,
            "-n",
            "-M",
            "prepared",
            "-c",
            str(clients),
            "-j",
            "2",
            "-T",
            str(max(1, round(seconds))),
            "-f",
        ]
        done = subprocess.run([*command, file.name, url], capture_output=True, text=True, check=False)
    rates = [line.split()[2] for line in done.stdout.splitlines() if line.startswith("tps =")]
    return f" (pgbench {float(rates[0]):,.0f})" if rates else ""
