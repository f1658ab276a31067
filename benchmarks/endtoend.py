"""No-op runs a second from submit to the recorded end, and submit to start, beside other queues on one PostgreSQL.

Ours goes the whole way over HTTP: batches of runs are submitted, runners claim up to 100, accept their starts and
report their ends, all tenants with quotas. The peers enqueue and work in their own processes, straight on PostgreSQL
or Redis. The workers run before the first job is submitted; the clock runs from the first submit to the last
acknowledgement. The peers live in an environment of their own, which is made once under `BENCH_PEERS` (default: in the
system's directory for temporary files) from the package index.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from admission.models import Run
from admission.services.tenants import issue_token
from benchmarks.idle import percentile
from benchmarks.noop_runner import Caller
from benchmarks.report import Row
from controlplane.core.audit import SYSTEM
from tests import ledger
from tests.runners.conftest import make_runner
from tests.runners.web import web_server

PACKAGES = ["procrastinate", "psycopg[binary]", "pgqueuer", "asyncpg", "celery[redis]", "django-q2", "redis"]
BARS = {"procrastinate": 2.0, "pgqueuer": None, "celery": None, "django-q2": 5.0}
JOBS = Path(__file__).parent / "peers" / "jobs.py"
WORKERS = {"procrastinate": 2, "pgqueuer": 2, "celery": 1, "django-q2": 1}
SUBMIT_PAUSE_SECONDS = 0.05
BATCH = 500
SLOTS = 100
OPEN = ["queued", "admitted", "running"]


def peers_python() -> str:
    """The interpreter of the peers' environment, made at the first call."""
    place = Path(os.environ.get("BENCH_PEERS", Path(tempfile.gettempdir()) / "wharfinger-bench-peers"))
    python = place / "bin" / "python"
    if not (place / "complete").exists():
        venv.create(place, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        (place / "complete").touch()
    return str(python)


class Ours:
    """The web server, two runner processes, four tenants."""

    def __init__(self, url: str, place: Path) -> None:
        self.log = place / "ours.log"
        self.log.touch()
        self._stack = contextlib.ExitStack()
        web = self._stack.enter_context(web_server(url, workers=2))
        tenants = [ledger.make_tenant(10**6) for _ in range(4)]
        self._callers = [Caller(web.port, issue_token(tenant, "bench", actor=SYSTEM)[1]) for tenant in tenants]
        for _ in range(2):
            token = make_runner(slots=SLOTS).token
            module = [sys.executable, "-m", "benchmarks.noop_runner", str(web.port), token, str(SLOTS), str(self.log)]
            self._stack.callback(_end, subprocess.Popen(module))
        self.rate(100)

    def rate(self, jobs: int) -> float:
        """Jobs a second."""
        began = time.time()
        for at in range(0, jobs, BATCH):
            caller = self._callers[at // BATCH % len(self._callers)]
            runs = [{"spec": {"command": ["true"]}} for _ in range(min(BATCH, jobs - at))]
            caller.post("/batches", {"name": f"b{time.time_ns()}", "runs": runs})
        while Run.objects.filter(state__in=OPEN).exists():
            time.sleep(0.02)
        return jobs / (time.time() - began)

    def latencies(self, jobs: int) -> list[float]:
        """Milliseconds from before a submit over HTTP to its accepted start at the runner."""
        submitted = {}
        for _ in range(jobs):
            at = time.time()
            submitted[self._callers[0].post("/runs", {"command": ["true"]})["id"]] = at
            time.sleep(SUBMIT_PAUSE_SECONDS)
        while Run.objects.filter(state__in=OPEN).exists():
            time.sleep(0.02)
        begun = dict(struct.iter_unpack("qd", self.log.read_bytes()))
        return [(begun[run] - at) * 1e3 for run, at in submitted.items()]

    def stop(self) -> None:
        """End everything."""
        self._stack.close()


class Peer:
    """One of the others, with its workers."""

    def __init__(self, name: str, python: str, url: str, redis: str, place: Path) -> None:
        self.name = name
        self.log = place / f"{name}.log"
        self.log.touch()
        self._python = python
        database = url if name == "celery" else _fresh_database(url, name)
        named = {"PEER": name, "PEER_DATABASE": database, "PEER_REDIS": redis, "PEER_LOG": str(self.log)}
        hidden = {"DJANGO_SETTINGS_MODULE", "PYTHONPATH", "DATABASE_URL"}
        self._env = {k: v for k, v in os.environ.items() if k not in hidden} | named | {"PYTHONPATH": str(JOBS.parent)}
        self._run("setup")
        self._workers = [self._start("work") for _ in range(WORKERS[name])]
        self.rate(20)

    def _start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        command = [self._python, str(JOBS), *words]
        quiet = {"stderr": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, **options}
        return subprocess.Popen(command, env=self._env, text=True, start_new_session=True, **quiet)

    def _run(self, *words: str) -> str:
        process = self._start(*words, stdout=subprocess.PIPE, stderr=None)
        printed, _ = process.communicate(timeout=180)
        assert process.returncode == 0, (words, process.returncode)
        return printed

    def rate(self, jobs: int) -> float:
        """Jobs a second."""
        before = self.log.stat().st_size // 16
        began = float(self._run("fill", str(jobs)))
        while self.log.stat().st_size // 16 < before + jobs:
            time.sleep(0.01)
        last = max(at for _, at in struct.iter_unpack("dd", self.log.read_bytes()))
        # Asked for by a process that takes its time to begin: if all is acknowledged by then, the last start counts.
        acknowledged = float(self._run("gone"))
        return jobs / ((last if acknowledged - last < SLOW_START_SECONDS else acknowledged) - began)

    def latencies(self, jobs: int) -> list[float]:
        """Milliseconds from before a submit to the begin of the job."""
        before = self.log.stat().st_size
        submitting = self._start("one", stdin=subprocess.PIPE)
        assert submitting.stdin is not None
        time.sleep(3)
        for _ in range(jobs):
            submitting.stdin.write("\n")
            submitting.stdin.flush()
            time.sleep(SUBMIT_PAUSE_SECONDS)
        until = time.monotonic() + 30
        while (self.log.stat().st_size - before) // 16 < jobs and time.monotonic() < until:
            time.sleep(0.05)
        submitting.stdin.close()
        submitting.wait(30)
        return [(at - sent) * 1e3 for sent, at in struct.iter_unpack("dd", self.log.read_bytes()[before:])]

    def stop(self) -> None:
        """End its workers."""
        for worker in self._workers:
            _end(worker)


SLOW_START_SECONDS = 3.0


def _end(process: subprocess.Popen[Any]) -> None:
    """With all that it started."""
    group = process.args and os.getpgid(process.pid)
    if group == process.pid:
        os.killpg(process.pid, 9)
    else:
        process.kill()
    process.wait(20)


def _fresh_database(url: str, name: str) -> str:
    database = f"{urlsplit(url).path.lstrip('/')}_{name.replace('-', '_')}"
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(database)))
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))
    return urlunsplit(urlsplit(url)._replace(path=f"/{database}"))


def _drop_database(url: str, name: str) -> None:
    database = f"{urlsplit(url).path.lstrip('/')}_{name.replace('-', '_')}"
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(database)))


@contextlib.contextmanager
def _redis(place: Path) -> Iterator[str]:
    """A Redis of our own, AOF every second, where there is a binary."""
    binary = shutil.which("redis-server") or shutil.which("valkey-server")
    if binary is None:
        yield ""
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--port", str(port), "--dir", str(place), "--appendonly", "yes", "--save", ""]
    server = subprocess.Popen([binary, *options], stdout=subprocess.DEVNULL)
    try:
        time.sleep(1)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        _end(server)


def measure(url: str, *, rounds: int, jobs: int, submits: int) -> Iterator[Row]:
    """A row for each peer and measure; ours and theirs in turns."""
    python = peers_python()
    place = Path(tempfile.mkdtemp(prefix="wharfinger-endtoend."))
    ours = Ours(url, place)
    own_latencies: list[float] = []
    try:
        with _redis(place) as redis:
            for name, bar in BARS.items():
                if name == "celery" and not redis:
                    continue
                peer = Peer(name, python, url, redis, place)
                yield from _beside(peer, bar, ours, rounds=rounds, jobs=jobs, submits=submits)
                _drop_database(url, name)
        own_latencies = ours.latencies(submits)
        yield _absolute("over HTTP, at a runner", "p50", percentile(own_latencies, 0.5), 20)
        yield _absolute("over HTTP, at a runner", "p99", percentile(own_latencies, 0.99), 100)
        ours.stop()
        at_replica = _replica_latencies(submits)
        yield _absolute("at a replica", "p50", percentile(at_replica, 0.5), 20)
        yield _absolute("at a replica", "p99", percentile(at_replica, 0.99), 100)
    finally:
        ours.stop()
        shutil.rmtree(place)


def _beside(peer: Peer, bar: float | None, ours: Ours, *, rounds: int, jobs: int, submits: int) -> Iterator[Row]:
    name = peer.name
    count = jobs // 10 if name == "django-q2" else jobs
    try:
        mine, theirs = [], []
        for _ in range(rounds):
            mine.append(ours.rate(jobs))
            theirs.append(peer.rate(count))
        ratios = [a / b for a, b in zip(mine, theirs, strict=True)]
        ratio = statistics.median(ratios)
        yield Row(
            f"no-op runs from submit to recorded end, quotas on, over HTTP, against {name}",
            ratio,
            "" if bar is None else f"≥ {bar:g}",
            None if bar is None else ratio >= bar,
            f"{statistics.median(mine):,.0f} runs/s",
            f"{statistics.median(theirs):,.0f} jobs/s",
            f"{min(ratios):.2f}-{max(ratios):.2f}",
        )
        a, b = ours.latencies(submits), peer.latencies(submits)
        yield Row(
            f"submit (over HTTP) to start, one idle worker, p50 and p99, against {name}",
            percentile(a, 0.5) / percentile(b, 0.5),
            "",
            None,
            f"{percentile(a, 0.5):.1f} / {percentile(a, 0.99):.1f} ms",
            f"{percentile(b, 0.5):.1f} / {percentile(b, 0.99):.1f} ms",
        )
    finally:
        peer.stop()


def _replica_latencies(submits: int) -> list[float]:
    """Milliseconds from the insertion of a run to its accepted start, by the database's clock, at an idle replica."""
    environment = {**os.environ, "CONTROLPLANE_EXECUTOR": "process", "LOG_LEVEL": "ERROR"}
    command = [sys.executable, "manage.py", "replica", "--id", "bench"]
    replica = subprocess.Popen(command, cwd=JOBS.parents[2], env=environment)
    try:
        tenant = ledger.make_tenant(10**6)
        _started(ledger.submit(tenant, 5, command=["true"]))
        runs = []
        for _ in range(submits):
            runs += ledger.submit(tenant, command=["true"])
            time.sleep(4 * SUBMIT_PAUSE_SECONDS)
        return _started(runs)
    finally:
        replica.terminate()
        replica.wait(60)


def _started(runs: list[int]) -> list[float]:
    while Run.objects.filter(pk__in=runs, state__in=OPEN).exists():
        time.sleep(0.05)
    times = Run.objects.filter(pk__in=runs).values_list("created_at", "started_at")
    return [(started - created).total_seconds() * 1e3 for created, started in times if started is not None]


def _absolute(where: str, which: str, found: float, bar: float) -> Row:
    what = f"submit to start, {where}, {which}"
    return Row(what, found / bar, "< 1", found < bar, f"{found:.1f} ms", f"{bar:g} ms")
