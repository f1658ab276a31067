"""Members and clusters as processes, the journals they leave, and the checker that judges them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from leadership.belief import now

ROOT = Path(__file__).resolve().parents[2]
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"
PATIENCE = 60.0

SMALL = {"lease": 1.5, "renew": 0.5, "tick": 0.1}
"""A lease of CI: the same relations as the product's 30, 10 and 1 s."""


def small_environment(lease: float = SMALL["lease"], **more: str) -> dict[str, str]:
    return {
        "CONTROLPLANE_LEADER_LEASE_SECONDS": str(lease),
        "CONTROLPLANE_LEADER_RENEW_SECONDS": str(lease / 3),
        "CONTROLPLANE_LEADER_TICK_SECONDS": str(lease / 15),
        "CONTROLPLANE_TICKER_SECONDS": "0.1",
        **more,
    }


def shifted(fake: str) -> dict[str, str]:
    """The environment of a process whose wall clock is off ("+1h"); its monotonic clocks stay right."""
    if not fake:
        return {}
    return {"LD_PRELOAD": FAKETIME, "FAKETIME": fake, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


@dataclass
class World:
    """Processes of one test; `end` leaves none behind, also stopped ones."""

    url: str
    """The server itself, for the test's own looks."""
    folder: Path
    environment: dict[str, str]
    application_url: str = ""
    """How the processes reach the same database, where that is through a pooler."""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    journals: list[Path] = field(default_factory=list)
    fakes: dict[str, str] = field(default_factory=dict)

    def _start(self, name: str, argv: Sequence[str], extra: dict[str, str]) -> subprocess.Popen[bytes]:
        given = {k: v for k, v in os.environ.items() if not k.startswith("CONTROLPLANE_")}
        environment = {
            **given,
            "DATABASE_URL": self.application_url or self.url,
            "SECRET_KEY": "of the tests",
            "DJANGO_SETTINGS_MODULE": "tests.leadership.fleet_settings",
            "PYTHONUNBUFFERED": "1",
            **self.environment,
            **extra,
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *argv], cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        self.processes[name] = process
        return process

    def member(self, name: str, *, fake: str = "", **extra: str) -> subprocess.Popen[bytes]:
        """A competitor; `fake` shifts its wall clock ("+1h")."""
        journal = self.folder / f"{name}.journal"
        if journal not in self.journals:
            self.journals.append(journal)
        self.fakes[name] = fake
        return self._start(name, ["-m", "tests.leadership.member", name, str(journal)], {**extra, **shifted(fake)})

    def revive(self, name: str) -> None:
        """Start a killed one again, with the clock it had."""
        self.member(name, fake=self.fakes[name])

    def cluster(self, name: str, **extra: str) -> subprocess.Popen[bytes]:
        return self._start(name, ["-m", "django", "qcluster"], extra)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(t) for j in self.journals if j.exists() for t in j.read_text().splitlines()]

    def leader(self) -> str:
        """Who believes now, by the newest line of all journals; waits for one."""

        def look() -> str:
            held = [x for x in self.lines() if "acted" in x and x["acted"] > now() - 0.2]
            alive = [x["name"] for x in held if self.processes[x["name"]].poll() is None]
            return alive[-1] if alive else ""

        return until(look, "nobody leads")

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def end(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        deadline = time.monotonic() + 10
        for process in self.processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - time.monotonic(), 0.1))
            _end_group(process)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """A cluster's workers are its children; killed alone, it would leave them."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def until(true: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    deadline = time.monotonic() + seconds
    while not (answer := true()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return answer


@dataclass(frozen=True)
class Span:
    """One process's belief in one term."""

    term: int
    name: str
    start: float
    end: float


def beliefs(lines: Sequence[dict[str, Any]]) -> list[Span]:
    """From journals: what was noted, joined by term. A killed process's belief counts to its full length."""
    spans: dict[tuple[int, str, int], list[float]] = {}
    for line in lines:
        if "term" not in line or line["term"] is None:
            continue
        key = (line["term"], line["name"], line["pid"])
        if "until" in line:
            span = spans.setdefault(key, [line["from"], line["until"]])
            span[:] = [min(span[0], line["from"]), max(span[1], line["until"])]
        elif "ended" in line:
            spans[key][1] = min(spans[key][1], line["ended"])
        elif "acted" in line:
            span = spans.setdefault(key, [line["acted"], line["acted"]])
            span[:] = [min(span[0], line["acted"]), max(span[1], line["acted"])]
    return sorted((Span(k[0], k[1], v[0], v[1]) for k, v in spans.items()), key=lambda s: (s.start, s.end))


def overlaps(spans: Sequence[Span]) -> list[tuple[Span, Span]]:
    """Pairs that believed at one time. Empty: at most one leader at every instant."""
    found, last = [], None
    for span in spans:
        if last is not None and span.start < last.end:
            found.append((last, span))
        last = span if last is None or span.end > last.end else last
    return found


def counted(url: str, loop: str = "count") -> list[Any]:
    with psycopg.connect(url) as connection:
        query = "SELECT fire_at, term, at FROM counted WHERE loop = %s ORDER BY at"
        return connection.execute(query, (loop,)).fetchall()
