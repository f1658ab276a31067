"""The loops of logs and claims."""

from __future__ import annotations

from typing import Final

from controlplane.core.conf import conf
from controlplane.core.loops import Gate, Loop

LOOPS: Final = (
    Loop(
        "log-retention",
        Gate.LOCAL,
        lambda: 600.0,
        "Batched, conditional deletes of old logs and claim answers: two processes at once delete each row once.",
        ("runners.services.retention.delete_expired",),
    ),
    Loop(
        "runner-pauses",
        Gate.LEADER,
        lambda: conf().sweep_interval_seconds,
        "Runners whose pause has an end take work again. Once per fleet: each resumption is audited.",
        ("runners.services.fleet.end_pauses",),
    ),
)
