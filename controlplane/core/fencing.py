"""Strict fencing in numbers (rule A16): for how long after sending a renewal a driver may let its containers be.

FENCE = TAKE - STOP - DRIFT - 1 tick, checked exhaustively in a model; each term is there because without it two
drivers can execute one run. TAKE is the shortest window by which the store may take the run.
"""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.core.conf import ControlPlaneSettings, conf

TICK_SECONDS = 1.0
"""Between the deadline and the watchdog that was scheduled and acts on it."""


@dataclass(frozen=True, slots=True)
class ReplicaFence:
    """A replica's two windows: its beat carries all its runs, and each permit lapses on its own."""

    beat_seconds: float
    permit_seconds: float


def is_strict() -> bool:
    """Whether the quota has to hold under partition, crash and pause too."""
    return conf().fence == "strict"


def fence_seconds(take_seconds: float, settings: ControlPlaneSettings) -> float:
    """From the sending of the last accepted renewal until the stop has to begin."""
    return take_seconds - settings.fence_stop_seconds - settings.fence_drift_seconds - TICK_SECONDS


def replica_fence() -> ReplicaFence | None:
    """What a replica has to keep; None: fencing is off."""
    settings = conf()
    if not is_strict():
        return None
    return ReplicaFence(
        beat_seconds=fence_seconds(settings.replica_stale_seconds, settings),
        permit_seconds=fence_seconds(settings.permit_lapse_seconds, settings),
    )


def runner_fence_seconds() -> float | None:
    """What runners are told to keep for each run; None: fencing is off. A permit lapses no sooner than a lease."""
    settings = conf()
    if not is_strict():
        return None
    return fence_seconds(min(settings.runner_lease_seconds, settings.permit_lapse_seconds), settings)
