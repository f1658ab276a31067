"""What a driver tells about itself: one callable, called with a name and fields."""

from __future__ import annotations

import logging
from typing import Protocol

log = logging.getLogger(__name__)

_LOUD = {
    "remove_failed",
    "loop_failed",
    "driver_error",
    "log_undelivered",
    "control_unavailable",
    "executor_unavailable",
    "watchdog_gone",
    "watchdog_error",
    "fence_closed",
    "slots_refused",
    "slot_lost",
    "slot_lockdown",
    "slot_pass_failed",
    "slot_ledger_silent",
    "slot_leftover_removed",
}


class OnEvent(Protocol):
    """Takes an event; called from many threads, must be quick."""

    def __call__(self, name: str, /, **fields: object) -> None:
        """`name` says what happened; fields say to what."""


def log_event(name: str, /, **fields: object) -> None:
    """The default: to the log of this module, what needs an operator as a warning."""
    level = logging.WARNING if name in _LOUD else logging.INFO
    log.log(level, "%s %s", name, " ".join(f"{key}={value}" for key, value in fields.items()))


def guarded(on_event: OnEvent) -> OnEvent:
    """A listener's own failure is logged and must not end a run."""

    def call(name: str, /, **fields: object) -> None:
        try:
            on_event(name, **fields)
        except Exception:
            log.exception("the listener failed on event %s", name)

    return call
