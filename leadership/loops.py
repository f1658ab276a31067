"""The loops of leadership itself. None is gated: they are what the gate is made of, or claim what they work on."""

from __future__ import annotations

from typing import Final

from controlplane.core.conf import conf
from controlplane.core.loops import Gate, Loop

LOOPS: Final = (
    Loop(
        "lease",
        Gate.LOCAL,
        lambda: conf().leader_tick_seconds,
        "Every replica looks at the lease; the holder renews it, others take it when it is free.",
    ),
    Loop(
        "ticker",
        Gate.LOCAL,
        lambda: conf().ticker_seconds,
        "Runs on every replica and does nothing but on the leader: a new leader's next tick just works.",
    ),
    Loop(
        "intents",
        Gate.LOCAL,
        lambda: 5.0,
        "Effects outside the database are delivered by whoever claims them first.",
        ("leadership.services.intents.deliver",),
    ),
    Loop(
        "retention",
        Gate.LOCAL,
        lambda: 600.0,
        "Batched, conditional deletes: two processes that do it at once delete each row once.",
        ("leadership.services.retention.delete_expired",),
    ),
)
