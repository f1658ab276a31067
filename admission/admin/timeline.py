"""The life of a run as steps, and of its attempts as bars on one scale. Arithmetic only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from admission.models import Attempt, Run
from admission.states import TERMINAL
from controlplane.admin_base.render import STATE_TONES, length


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happened to the run, or is awaited (`at` None)."""

    label: str
    at: datetime | None
    tone: str
    since: str = ""
    """Time since the step before."""


@dataclass(frozen=True, slots=True)
class AttemptBar:
    """Where an attempt lies between the run's creation and its end: percent of the whole."""

    left: float
    wait: float
    run: float
    tone: str

    @property
    def run_left(self) -> float:
        """Where the running part begins."""
        return self.left + self.wait


def steps(run: Run) -> list[Step]:
    """In the order of time; the last is what it waits for, if anything."""
    found = [(label, at, tone) for label, at, tone in _happened(run) if at is not None]
    found.sort(key=lambda item: item[1])
    drawn: list[Step] = []
    for label, at, tone in found:
        before = drawn[-1].at if drawn else None
        drawn.append(Step(label, at, tone, str(length(before, at)) if before else ""))
    if run.state not in TERMINAL:
        drawn.append(Step(_awaited(run), None, "mute"))
    return drawn


def _happened(run: Run) -> Iterator[tuple[str, datetime | None, str]]:
    yield "created", run.created_at, "wait"
    yield f"admitted (attempt {run.attempt})", run.admitted_at, "ready"
    yield "started", run.started_at, "run"
    yield "cancel requested", run.cancel_requested_at, "warn"
    yield "seen by driver", run.cancel_seen_at, "warn"
    yield "stopped", run.cancel_stopped_at, "warn"
    yield "confirmed gone", run.cancel_confirmed_at, "warn"
    yield run.state.replace("_", " "), run.finished_at, STATE_TONES.get(run.state, "mute")


def _awaited(run: Run) -> str:
    if run.cancel_requested_at is not None:
        return "waits for its driver to stop it"
    return {"queued": "waits for admission", "admitted": "waits for its start"}.get(run.state, "runs")


def bars(run: Run, attempts: Sequence[Attempt], now: datetime) -> list[AttemptBar]:
    """One bar per attempt, all on the scale from the run's creation to its end (or now)."""
    end = run.finished_at or now
    whole = max((end - run.created_at).total_seconds(), 0.001)

    def percent(start: datetime, stop: datetime) -> float:
        return round(max(min(100 * (stop - start).total_seconds() / whole, 100.0), 0.0), 2)

    drawn = []
    for attempt in attempts:
        stop = attempt.released_at or end
        begun = attempt.started_at or stop
        tone = STATE_TONES.get(attempt.ending or run.state, "mute")
        drawn.append(
            AttemptBar(
                left=percent(run.created_at, attempt.admitted_at),
                wait=max(percent(attempt.admitted_at, begun), 0.4),
                run=percent(begun, stop),
                tone=tone,
            )
        )
    return drawn
