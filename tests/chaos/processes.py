"""Processes that are killed and started again, each start with a log of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

from tests.fencing.world import ROOT


@dataclass
class Kept:
    """One process of the fleet, in a group of its own."""

    name: str
    argv: list[str]
    env: dict[str, str]
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    lives: list[Path] = field(default_factory=list)

    def start(self) -> None:
        log = self.folder / f"{self.name}.{len(self.lives)}.log"
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                self.argv, cwd=ROOT, env=self.env, stdout=file, stderr=file, start_new_session=True
            )
        self.lives.append(log)

    @property
    def lives_now(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """As the machine's end would: -9, and for a web process its workers with it."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):  # nothing of it is left
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def ask_to_end(self) -> None:
        assert self.process is not None
        self.process.terminate()

    def end(self) -> None:
        if self.process is not None:
            self.kill()

    def text(self) -> str:
        """The last of its last log."""
        return self.lives[-1].read_text(errors="replace")[-4000:] if self.lives else ""


@dataclass
class Web(Kept):
    """A web process: its parent, and the workers that it starts."""

    port: int = 0

    def is_ready(self) -> bool:
        try:
            return requests.get(f"http://127.0.0.1:{self.port}/readyz", timeout=5).ok
        except requests.RequestException:
            return False


@dataclass
class Agent(Kept):
    """`wharfinger runner run`: it tells its events on its standard error."""

    def events(self, last: int = 0) -> Iterator[dict[str, Any]]:
        """Of all its lives, or of so many; the last line of one that was killed may be torn."""
        for life in self.lives[-last:]:
            for line in life.read_text().splitlines(keepends=True):
                if line.startswith("{") and line.endswith("}\n"):
                    yield json.loads(line)

    def is_connected(self) -> bool:
        """In this life, so that it also handles its signals."""
        return any(event["event"] == "connected" for event in self.events(last=1))
