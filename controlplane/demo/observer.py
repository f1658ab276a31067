"""An independent witness: samples permits and containers every 20 ms and keeps the highest it ever saw.

Run as a process of its own (`python -m controlplane.demo.observer`; `DATABASE_URL` in the environment). It shares no
code with what it watches: plain SQL on a connection of its own, and the Docker daemon's API over its socket. SIGTERM
makes it print one JSON object.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import psycopg

INTERVAL_SECONDS = 0.02
LOOK_SECONDS = 0.1
OUTAGE_SECONDS = 120.0

# One snapshot: what each tenant's permits sum to, its limit, its counter, and its runs that hold compute.
PERMITS = """
SELECT t.slug, c."limit", c.in_flight,
       coalesce((SELECT sum(p.weight) FROM admission_permit p WHERE p.scope = 'tenant' AND p.key = c.key), 0)::int,
       (SELECT count(*) FROM admission_run r WHERE r.tenant_id = t.id AND r.state IN ('admitted', 'running'))::int
FROM admission_tenant t JOIN admission_counter c ON c.scope = 'tenant' AND c.key = t.id::text
WHERE t.slug = ANY(%s)
"""
# Whose containers these are: of this ledger are those that a replica or a runner of it made. Another fleet on the same
# daemon has runs of the same numbers.
TENANTS_OF = """
SELECT a.run, a.driver, t.slug FROM unnest(%s::bigint[], %s::text[]) AS a(run, driver)
JOIN admission_run r ON r.id = a.run JOIN admission_tenant t ON t.id = r.tenant_id
WHERE EXISTS (SELECT FROM admission_attempt m WHERE m.run_id = a.run AND m.maker::text = a.driver)
   OR EXISTS (SELECT FROM runners_runner n
              WHERE a.driver IN ('runner-' || left(encode(n.hash, 'hex'), 16),
                                 'runner-' || left(encode(n.old_hash, 'hex'), 16)))
"""
Container = tuple[int, str]
"""A run and what says who made it."""


class _SocketConnection(http.client.HTTPConnection):
    """HTTP over the daemon's Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=10)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


@dataclass(slots=True)
class Seen:
    """What was seen, by tenant."""

    samples: int = 0
    container_samples: int = 0
    permits: dict[str, int] = field(default_factory=dict)
    holding: dict[str, int] = field(default_factory=dict)
    containers: dict[str, int] = field(default_factory=dict)
    limits: dict[str, int | None] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    longest_gap_seconds: float = 0.0
    outages: int = 0

    def note(self, kind: str, tenant: str, value: int) -> None:
        """Keep the highest value of a kind, which is the name of a field."""
        highest: dict[str, int] = getattr(self, kind)
        highest[tenant] = max(highest.get(tenant, 0), value)

    def violate(self, text: str) -> None:
        """Keep what must never be; bounded, for one cause would repeat it at every sample."""
        if len(self.violations) < 100:
            self.violations.append(text)


class Ledger:
    """A connection that is made anew after the database was away; how often that was is part of the report."""

    def __init__(self, database_url: str, seen: Seen) -> None:
        self._url = database_url
        self._seen = seen
        self._connection = self._connect()

    def read(self, statement: str, *parameters: list[Any]) -> list[Any]:
        """All rows; waits through an outage."""
        while True:
            try:
                return self._connection.execute(statement, parameters).fetchall()
            except psycopg.OperationalError:
                self._seen.outages += 1
                self._connection.close()
                self._connection = self._connect()

    def _connect(self) -> psycopg.Connection[Any]:
        deadline = time.monotonic() + OUTAGE_SECONDS
        while True:
            try:
                return psycopg.connect(self._url, autocommit=True)
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(INTERVAL_SECONDS)


class PermitWatch:
    """Samples the ledger."""

    def __init__(self, database_url: str, tenants: list[str], seen: Seen) -> None:
        self._ledger = Ledger(database_url, seen)
        self._tenants = tenants
        self._seen = seen

    def sample(self) -> None:
        """One snapshot of the ledger, compared with itself and with the quotas."""
        for slug, limit, in_flight, permits, holding in self._ledger.read(PERMITS, self._tenants):
            self._seen.limits[slug] = limit
            self._seen.note("permits", slug, permits)
            self._seen.note("holding", slug, holding)
            if in_flight != permits:
                self._seen.violate(f"{slug}: counter {in_flight}, permits {permits}")
            if limit is not None and max(permits, holding) > limit:
                self._seen.violate(f"{slug}: {permits} permits, {holding} runs hold compute, quota {limit}")
        self._seen.samples += 1


class ContainerWatch:
    """Samples `docker ps`: running containers with our labels, counted by their run's tenant."""

    def __init__(self, socket_path: str, database_url: str, tenants: list[str], seen: Seen) -> None:
        self._docker = _SocketConnection(socket_path)
        self._ledger = Ledger(database_url, seen)
        self._tenants = set(tenants)
        self._tenant_of: dict[Container, str] = {}
        self._seen = seen

    def sample(self) -> None:
        """One listing of the daemon, compared with the quotas."""
        counts = Counter(self._slugs(self._running()))
        for slug in self._tenants:
            self._seen.note("containers", slug, counts[slug])
            limit = self._seen.limits.get(slug)
            if limit is not None and counts[slug] > limit:
                self._seen.violate(f"{slug}: {counts[slug]} containers run, quota {limit}")
        self._seen.container_samples += 1

    def _running(self) -> list[Container]:
        filters = quote(json.dumps({"label": ["wharfinger.run", "wharfinger.driver"]}))
        self._docker.request("GET", f"/containers/json?filters={filters}")
        answer = self._docker.getresponse()
        found: list[dict[str, Any]] = json.loads(answer.read())
        return [(int(one["Labels"]["wharfinger.run"]), one["Labels"]["wharfinger.driver"]) for one in found]

    def _slugs(self, containers: list[Container]) -> Iterable[str]:
        unknown = [one for one in containers if one not in self._tenant_of]
        if unknown:
            runs, drivers = map(list, zip(*unknown, strict=True))
            # The attempt was committed before its container was made: what is not ours now never will be.
            self._tenant_of.update(dict.fromkeys(unknown, ""))
            self._tenant_of.update({(r, d): slug for r, d, slug in self._ledger.read(TENANTS_OF, runs, drivers)})
        return [self._tenant_of[one] for one in containers]


def _watch(sample: Any, seen: Seen, stop: threading.Event) -> None:
    last = time.monotonic()
    while not stop.is_set():
        begun = time.monotonic()
        seen.longest_gap_seconds = max(seen.longest_gap_seconds, begun - last)
        last = begun
        sample()
        stop.wait(max(0.0, INTERVAL_SECONDS - (time.monotonic() - begun)))


def main() -> None:
    """Watch until SIGTERM, then report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database-url", default=os.environ.get("DATABASE_URL"))
    parser.add_argument("--docker-socket", default="")
    parser.add_argument("tenants", nargs="+")
    options = parser.parse_args()
    seen, stop = Seen(), threading.Event()
    # The handler notes it and no more: setting an event from there can meet this thread inside that event's lock.
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watches = [PermitWatch(options.database_url, options.tenants, seen).sample]
    if options.docker_socket:
        watch = ContainerWatch(options.docker_socket, options.database_url, options.tenants, seen)
        watches.append(watch.sample)
    # daemon: a watch that hangs in the daemon's socket must not keep the report back.
    threads = [threading.Thread(target=_watch, args=(sample, seen, stop), daemon=True) for sample in watches]
    for thread in threads:
        thread.start()
    while not asked:
        time.sleep(LOOK_SECONDS)
        if not all(thread.is_alive() for thread in threads):
            seen.violate("a watch died: see the observer's log")
            break
    stop.set()
    for thread in threads:
        thread.join(2)
    json.dump({name: getattr(seen, name) for name in seen.__slots__}, sys.stdout)


if __name__ == "__main__":
    main()
