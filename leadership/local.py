"""Local loops: run in each process for itself, and what operators see of them."""

from __future__ import annotations

import logging

from psycopg.types.json import Jsonb

from controlplane.core.loops import Gate, Loop
from controlplane.core.sql import execute
from leadership import registry, sql
from leadership.belief import now
from leadership.execution import worker_name

log = logging.getLogger(__name__)

RECORD_FROM_SECONDS = 30.0
"""A loop faster than this is recorded when it fails: its row would be the fleet's most written one."""

MAX_BATCHES = 100


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


def local_loops() -> list[Loop]:
    """Those whose steps a replica process runs in threads of its own."""
    return [loop for loop in registry.loops().values() if loop.gate is Gate.LOCAL and loop.steps]


def run_local(loop: Loop) -> None:
    """One run of a local loop. Raises what a step raised, after recording it."""
    began = now()
    counts: dict[str, object] = {}
    try:
        for path in loop.steps:
            step = registry.step(path)
            for _ in range(MAX_BATCHES):
                progress = step()
                counts.update(progress.counts)
                if not progress.more:
                    break
    except Exception as error:
        _note(loop, began, counts, f"{type(error).__name__}: {error}")
        raise
    if loop.seconds() >= RECORD_FROM_SECONDS:
        _note(loop, began, counts, "")


def _note(loop: Loop, began: float, counts: dict[str, object], error: str) -> None:
    execute(
        sql.NOTE_LOCAL,
        {
            "loop": loop.name,
            "place": worker_name(),
            "seconds": loop.seconds(),
            "took": now() - began,
            "result": Jsonb(counts),
            "error": error[:2000],
        },
    )
