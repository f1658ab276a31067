"""Scripts of physical slots a second through our client, against the same EVALSHA sent by redis-benchmark.

Both renew one holder of a full instance of twelve, in turns, on a server of the benchmark's own (append-only file on,
fsync every second, as the embedded one).
"""

from __future__ import annotations

import multiprocessing
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from admission.physical.entitlement import Entitlement
from admission.physical.keys import Keys
from admission.physical.outside import Verified
from admission.physical.protocol import PhysicalSlots, new_token
from admission.physical.redis_adapter import RedisServer
from benchmarks.report import Row, interleaved, median_ratio
from tests.physical.server import OwnRedis
from tests.physical.world import DirectoryRecord, container_id

LIMIT = 12
BARE = "redis-benchmark"
SCRIPTS_OF_AN_EXECUTION = 4


def measure(rounds: int, seconds: float) -> list[Row]:
    """Renewals by one and by four clients, and what one execution costs."""
    product = "redis" if Path("/usr/bin/redis-server").exists() else "valkey"
    with _instance(product) as (own, place):
        rows = [_renewals(own, place, clients, rounds, seconds) for clients in (1, 4)]
        return [*rows, _execution(own, place)]


@contextmanager
def _instance(product: str) -> Iterator[tuple[OwnRedis, Path]]:
    place = Path(tempfile.mkdtemp(prefix="wharfinger-bench."))
    own = OwnRedis(product, place / "server", appendfsync="everysec")
    try:
        own.start()
        (place / "record").mkdir()
        yield own, place / "record"
    finally:
        own.stop()
        shutil.rmtree(place)


def _slots(url: str, place: Path, name: str) -> PhysicalSlots:
    entitlement = Entitlement(name, LIMIT, 0, hosted=True)
    return PhysicalSlots(RedisServer(url), entitlement, DirectoryRecord(place), lambda _: Verified(clean=True))


def _renewals(own: OwnRedis, place: Path, clients: int, rounds: int, seconds: float) -> Row:
    name = f"renewals by {clients}"
    record = place / str(clients)
    record.mkdir()
    slots = _slots(own.url, record, name)
    tokens = [new_token() for _ in range(LIMIT)]
    for token in tokens:
        assert slots.acquire(token, "bench").ok
        assert slots.register(token, "bench", container_id()).ok
    pool = multiprocessing.get_context("forkserver").Pool(clients)
    given = [(own.url, record, name, tokens[n], seconds) for n in range(clients)]
    try:
        pool.map(_renew, [(*each[:4], 0.2) for each in given], chunksize=1)
        bare = shutil.which(BARE) is not None
        other = (lambda: _bare(own, slots, tokens[0], clients, seconds)) if bare else (lambda: 0.0)
        ours, others = interleaved(rounds, lambda: sum(pool.map(_renew, given, chunksize=1)), other)
    finally:
        pool.terminate()
        pool.join()
        slots.close()
    ratio, spread = median_ratio(ours, others) if bare else (0.0, f"no {BARE} here")
    what = f"renewal of a slot, {clients} {'client' if clients == 1 else 'clients'}"
    against = f"{statistics.median(others):,.0f} {BARE}"
    return Row(what, ratio, "", None, f"{statistics.median(ours):,.0f} scripts/s", against, spread)


def _renew(given: tuple[str, Path, str, str, float]) -> float:
    url, record, name, token, seconds = given
    slots = _slots(url, record, name)
    slots.renew(token, "bench")
    done, began = 0, time.perf_counter()
    until = began + seconds
    while time.perf_counter() < until:
        slots.renew(token, "bench")
        done += 1
    slots.close()
    return done / (time.perf_counter() - began)


def _bare(own: OwnRedis, slots: PhysicalSlots, token: str, clients: int, seconds: float) -> float:
    keys = Keys.of(slots.entitlement.instance).all
    script = slots._scripts["renew"].sha  # noqa: SLF001 - the same script, without our client
    identity = slots._gate.identity().arguments  # noqa: SLF001
    command = ["EVALSHA", script, "3", *keys, *identity, token, "bench"]
    requests = str(int(10_000 * clients * seconds))
    options = [BARE, "-p", str(own.port), "-c", str(clients), "-n", requests, "-q"]
    told = subprocess.run([*options, *command], capture_output=True, text=True, check=True).stdout
    rates = re.findall(r"([\d.]+) requests per second", told)
    assert rates, told
    return float(rates[-1])


def _execution(own: OwnRedis, place: Path) -> Row:
    record = place / "execution"
    record.mkdir()
    slots = _slots(own.url, record, "one execution")
    # The first one also teaches the server the scripts.
    _execute(slots)
    before, began = _commands(own), time.perf_counter()
    _execute(slots)
    took, sent = time.perf_counter() - began, _commands(own) - before
    slots.close()
    what = "round trips of one execution (acquire, register, fence, free), beside one renewal each 10 s"
    met = sent <= SCRIPTS_OF_AN_EXECUTION
    ours = f"{sent} ({took * 1e3:.1f} ms)"
    return Row(what, sent / SCRIPTS_OF_AN_EXECUTION, "≤ 1", met, ours, str(SCRIPTS_OF_AN_EXECUTION))


def _execute(slots: PhysicalSlots) -> None:
    token, container = new_token(), container_id()
    assert slots.acquire(token, "bench").ok
    assert slots.register(token, "bench", container).ok
    slots.fence_own(token, "bench")
    slots.free(token, container)


def _commands(own: OwnRedis) -> int:
    """Scripts called until now; the commands inside them are counted apart."""
    stats: dict[str, Any] = own.client.info("commandstats")
    return sum(int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("evalsha", "eval"))
