"""Idle runners: a thousand of them wait at one web process. What that costs, and how fast one of them has new work.

The server is the real one, one worker. The runners are connections of this process: each asks with `wait_seconds` 60
and asks again when it was answered. Then single runs are submitted through the service function, as another web
process would do it, and the time is taken from the return of that call (its commit) to the assignment in the hands of
a runner. Memory and CPU are those of the worker process; the database's share is given beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.report import Row
from runners.models import Runner
from tests import ledger
from tests.runners.web import CLAIMS, Web, web_server

CPU_BAR, MEMORY_BAR_MB, P50_BAR_MS, P99_BAR_MS = 0.15, 300, 30, 200
SUBMIT_PAUSE_SECONDS = 0.06
WARM_SUBMITS = 5


def cpu_seconds(pid: int) -> float:
    """User and system time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def database_seconds() -> float:
    """The same of every database server process of this machine that works on our database."""
    name = ledger.connection.settings_dict["NAME"]
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    used = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):
            if name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]:
                used += cpu_seconds(pid)
    return used


def resident_mb(pid: int) -> float:
    """Resident memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def percentile(values: list[float], share: float) -> float:
    """The value that this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


class Fleet:
    """Connections that ask, wait, and ask again."""

    def __init__(self, port: int, tokens: list[str]) -> None:
        self._port = port
        self._tokens = tokens
        self.polls = 0
        self.failures: list[bytes] = []
        self.all_asked = asyncio.Event()
        self._arrived: dict[int, asyncio.Future[float]] = {}

    async def run(self, index: int) -> None:
        """One runner, until it is cancelled."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        number = 0
        try:
            while True:
                number += 1
                writer.write(_request(self._tokens[index], f"r{number}"))
                self.polls += 1
                if self.polls >= len(self._tokens):
                    self.all_asked.set()
                await self._read(reader)
        finally:
            writer.close()

    def arrival(self, run: int) -> asyncio.Future[float]:
        """When the assignment of this run was read."""
        return self._arrived.setdefault(run, asyncio.get_running_loop().create_future())

    async def _read(self, reader: asyncio.StreamReader) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        status = head.split(b" ", 2)[1]
        length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0")
        body = await reader.readexactly(int(length.partition(b":")[2]))
        if status == b"200":
            at = time.perf_counter()
            for one in json.loads(body)["assignments"]:
                self.arrival(one["run"]).set_result(at)
        elif status != b"204":
            self.failures.append(head)


def _request(token: str, request_id: str) -> bytes:
    body = json.dumps({"request_id": request_id, "slots": 1, "wait_seconds": 60}).encode()
    head = f"POST {CLAIMS} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def make_runners(count: int) -> list[str]:
    """Rows of runners, their tokens."""
    tokens = [f"whr_bench{number:06d}{'x' * 30}" for number in range(count)]
    Runner.objects.bulk_create(
        Runner(
            name=f"r{n}", shown="whr_bench", hash=hashlib.sha256(t.encode()).digest(), executors=["docker"], slots=1
        )
        for n, t in enumerate(tokens)
    )
    return tokens


async def _measure(web: Web, runners: int, seconds: float, submits: int) -> dict[str, Any]:
    tenant = await asyncio.to_thread(ledger.make_tenant, 10**6)
    fleet = Fleet(web.port, await asyncio.to_thread(make_runners, runners))
    tasks = [asyncio.create_task(fleet.run(index)) for index in range(runners)]
    await fleet.all_asked.wait()
    await asyncio.sleep(5)
    pid = web.worker()
    began, cpu, database = time.perf_counter(), cpu_seconds(pid), database_seconds()
    await asyncio.sleep(seconds)
    took = time.perf_counter() - began
    idle = {"cpu": (cpu_seconds(pid) - cpu) / took, "database": (database_seconds() - database) / took}
    memory = resident_mb(pid)
    latencies = await _submit(fleet, tenant, submits)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not fleet.failures, fleet.failures[:3]
    return {**idle, "memory": max(memory, resident_mb(pid)), "latencies": latencies, "polls": fleet.polls}


async def _submit(fleet: Fleet, tenant: Any, submits: int) -> list[float]:
    latencies: list[float] = []
    for number in range(submits + WARM_SUBMITS):
        [run] = await asyncio.to_thread(ledger.submit, tenant)
        committed = time.perf_counter()
        at = await asyncio.wait_for(fleet.arrival(run), 10)
        if number >= WARM_SUBMITS:
            latencies.append((at - committed) * 1e3)
        await asyncio.sleep(SUBMIT_PAUSE_SECONDS)
    return latencies


def measure(url: str, *, runners: int, seconds: float, submits: int) -> Iterator[Row]:
    """Four rows: CPU, memory, and the two percentiles of the time to the assignment."""
    with web_server(url) as web:
        found = asyncio.run(_measure(web, runners, seconds, submits))
    p50, p99 = percentile(found["latencies"], 0.5), percentile(found["latencies"], 0.99)
    who = f"{runners:,} idle runners, polls of 60 s, one web process"
    beside = f"{found['database']:.3f} cores in the database, {found['polls']:,} polls"
    for what, value, bar, unit, more in (
        ("CPU", found["cpu"], CPU_BAR, "cores", beside),
        ("memory", found["memory"], MEMORY_BAR_MB, "MB", ""),
        ("commit of a submit to its assignment, p50", p50, P50_BAR_MS, "ms", f"{submits} single runs"),
        ("commit of a submit to its assignment, p99", p99, P99_BAR_MS, "ms", f"{submits} single runs"),
    ):
        ratio = value / bar
        yield Row(f"{who}: {what}", ratio, "< 1", ratio < 1, f"{value:.3g} {unit}", f"{bar:g} {unit}", more)
