"""Waiting for a slot: polls with jitter, woken at once by a release of the same process, bounded by the caller's deadline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from admission.physical.protocol import PhysicalSlots
from admission.physical.results import Acquire


@dataclass(frozen=True, slots=True)
class Wait:
    """`acquired.ok`: the slot is held. Else the last answer, or None if there was none (`error`: why)."""

    acquired: Acquire | None
    waited_seconds: float
    error: str = ""


def wait_for_slot(
    slots: PhysicalSlots,
    token: str,
    owner: str,
    *,
    run: str,
    deadline: float,
    recover: Callable[[], None],
    cancelled: Callable[[], bool],
) -> Wait:
    """Ask until granted, refused for good, cancelled, or `deadline` (`time.clock_gettime(CLOCK_BOOTTIME)`).

    `recover` is the Docker side's recovery on demand (P10): called when an answer said that something is recoverable.
    After anything but a granted slot the caller still releases the token (`fence_own`): a lost grant may be behind it.
    """
    raise NotImplementedError
