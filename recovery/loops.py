"""The loops of replicas."""

from __future__ import annotations

from typing import Final

from controlplane.core.conf import conf
from controlplane.core.loops import Gate, Loop

LOOPS: Final = (
    Loop(
        "beat",
        Gate.LOCAL,
        lambda: conf().heartbeat_interval_seconds,
        "Each replica says that it lives; nobody can say it for another.",
    ),
    Loop(
        "probe",
        Gate.LOCAL,
        lambda: conf().probe_seconds,
        "Each replica samples its own machine; nobody else can.",
    ),
    Loop("holds", Gate.LOCAL, lambda: 1.0, "Each replica compares its own table with the ledger."),
    Loop("slots", Gate.LOCAL, lambda: 2.0, "Each process of an instance passes over its containers, and says so."),
    Loop(
        "reconcile",
        Gate.LOCAL,
        lambda: conf().recovery_interval_seconds,
        "Every replica looks for dead peers and claims each; gated, work would wait for the leader to fall too.",
    ),
    Loop(
        "recovery-retention",
        Gate.LOCAL,
        lambda: 3600.0,
        "Batched, conditional deletes: two processes that do it at once delete each row once.",
        ("recovery.services.retention.delete_expired",),
    ),
    Loop(
        "stuck-runs",
        Gate.LEADER,
        lambda: 60.0,
        "Operators are told of a stuck run once, not once per replica.",
        ("recovery.services.stuck.notify_stuck",),
    ),
)
