"""Local loops: run in each process for itself, and what operators see of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

from django.db import DatabaseError
from psycopg.types.json import Jsonb

from controlplane.core.loops import Gate, Loop
from controlplane.core.sql import execute
from leadership import registry, sql
from leadership.belief import now

log = logging.getLogger(__name__)

NOTE_SECONDS = 30.0
"""A run is written down at most this often, however fast the loop: its row would be the fleet's most written one."""

MAX_BATCHES = 100
MAX_ERROR = 2000

Result = Mapping[str, object]


def declare_loops() -> None:
    """Write down the loops of this code, for web processes and operators; once at a replica's start."""
    known = list(registry.loops().values())
    execute(
        sql.DECLARE_LOOPS,
        {
            "loops": [loop.name for loop in known],
            "gates": [loop.gate.value for loop in known],
            "seconds": [loop.seconds() for loop in known],
            "whys": [loop.why for loop in known],
        },
    )
    execute(sql.FORGET_LOOPS, {"loops": [loop.name for loop in known]})


class Noted:
    """A tick of a local loop that leaves its last run, and any failure, where operators look."""

    def __init__(self, loop: Loop, place: str, tick: Callable[[], Result | None]) -> None:
        self._loop, self._place, self._tick = loop, place, tick
        self._next = 0.0
        self._error = ""

    def __call__(self) -> None:
        """One run. Raises what the tick raised."""
        began = now()
        try:
            result = self._tick() or {}
        except Exception as error:
            self._note_failure(began, f"{type(error).__name__}: {error}"[:MAX_ERROR])
            raise
        if now() >= self._next or self._error:
            self._note(began, result, "")

    def _note_failure(self, began: float, error: str) -> None:
        if error == self._error and now() < self._next:
            return
        try:
            self._note(began, {}, error)
        except DatabaseError:
            # Most likely the reason of the failure itself, which the caller logs.
            log.warning("loop.not_noted", extra={"loop": self._loop.name})

    def _note(self, began: float, result: Result, error: str) -> None:
        execute(
            sql.NOTE_LOCAL,
            {
                "loop": self._loop.name,
                "place": self._place,
                "seconds": self._loop.seconds(),
                "took": now() - began,
                "result": Jsonb(dict(result)),
                "error": error,
            },
        )
        self._next, self._error = now() + NOTE_SECONDS, error


def noted(name: str, place: str, tick: Callable[[], Result | None]) -> Noted:
    """For a loop that the process runs itself."""
    return Noted(registry.get_loop(name), place, tick)


def local_loops(place: str) -> list[tuple[Loop, Noted]]:
    """Those whose steps a replica process runs in threads of its own."""
    known = [loop for loop in registry.loops().values() if loop.gate is Gate.LOCAL and loop.steps]
    return [(loop, Noted(loop, place, partial(_run, loop))) for loop in known]


def _run(loop: Loop) -> Result:
    counts: dict[str, object] = {}
    for path in loop.steps:
        step = registry.step(path)
        for _ in range(MAX_BATCHES):
            progress = step()
            counts.update(progress.counts)
            if not progress.more:
                break
    return counts
