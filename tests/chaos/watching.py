"""Who looks from outside while it happens: at the limits, and at the containers that the daemon starts."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tests.races.attack import OBSERVE


@dataclass
class Seen:
    """Looks at the counters, each one statement and so one instant."""

    looks: int = 0
    above: int = 0
    drifted: int = 0
    stray: int = 0
    most_held: int = 0

    def look(self, observer: psycopg.Connection[object]) -> None:
        row = observer.execute(OBSERVE.encode()).fetchone()
        assert isinstance(row, tuple)
        self.looks += 1
        self.above += row[0]
        self.drifted += row[1]
        self.stray += row[2]
        self.most_held = max(self.most_held, row[3])


@contextmanager
def watched(url: str, every: float) -> Iterator[Seen]:
    """Over a connection of its own to the server."""
    seen, over = Seen(), threading.Event()

    def look() -> None:
        with psycopg.connect(url, autocommit=True) as observer:
            while not over.wait(every):
                seen.look(observer)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


@contextmanager
def docker_starts(driver: str, file: Path) -> Iterator[None]:
    """The daemon's own account of the containers that it starts for one driver, one a line."""
    filters = ["type=container", "event=start", f"label=wharfinger.driver={driver}"]
    command = ["docker", "events", "--format", "{{json .}}"]
    for one in filters:
        command += ["--filter", one]
    with file.open("wb") as output:
        process = subprocess.Popen(command, stdout=output)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def read_docker_starts(file: Path) -> list[tuple[int, int, float]]:
    """(run, attempt, when) of each."""
    found = []
    for line in file.read_text().splitlines():
        event = json.loads(line)
        labels = event["Actor"]["Attributes"]
        found.append((int(labels["wharfinger.run"]), int(labels["wharfinger.attempt"]), event["timeNano"] / 1e9))
    return found
