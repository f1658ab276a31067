"""The loops of the ledger."""

from __future__ import annotations

from typing import Final

from controlplane.core.conf import conf
from controlplane.core.loops import Gate, Loop

_SWEEPS = "admission.services.sweeps"

LOOPS: Final = (
    Loop(
        "deadlines",
        Gate.LEADER,
        lambda: conf().sweep_interval_seconds,
        "Delayed runs join the queue; queue, start and run deadlines; ends of pauses. Once per fleet, or N processes "
        "would scan the same rows.",
        (
            f"{_SWEEPS}.release_delayed",
            f"{_SWEEPS}.expire_queued",
            f"{_SWEEPS}.pass_start_deadlines",
            f"{_SWEEPS}.pass_run_deadlines",
            f"{_SWEEPS}.end_pauses",
        ),
    ),
    Loop(
        "runner-leases",
        Gate.LEADER,
        lambda: conf().sweep_interval_seconds,
        "Runs of silent runners go back to the queue. Gated: the hold after an outage is the fleet's.",
        (f"{_SWEEPS}.pass_runner_leases",),
    ),
    Loop(
        "unserved",
        Gate.LEADER,
        lambda: conf().reap_interval_seconds,
        "Runs that asked to fail when nobody can take them. Gated: the hold after an outage is the fleet's.",
        ("admission.services.serving.fail_unserved",),
    ),
    Loop(
        "permit-reap",
        Gate.LEADER,
        lambda: conf().reap_interval_seconds,
        "Lapsed permits are freed, so that an idle tenant's leaks heal too.",
        ("admission.services.reaping.reap_run_permits", "admission.services.reaping.reap_outside_permits"),
    ),
    Loop(
        "tenant-deletions",
        Gate.LEADER,
        lambda: conf().reap_interval_seconds,
        "Tenants that are being deleted are emptied and go. Once per fleet: each batch locks its tenant alone.",
        ("admission.services.deleting.finish_deletions",),
    ),
    Loop(
        "conservation",
        Gate.LEADER,
        lambda: conf().audit_interval_seconds,
        "Counters are compared with their permits; a drift is repaired and reported once, not once per replica.",
        ("admission.services.conservation.audit_conservation",),
    ),
    Loop(
        "samples",
        Gate.LEADER,
        lambda: 60.0,
        "Numbers for the charts: one row a minute each, not one per replica.",
        ("admission.services.sampling.sample",),
    ),
)
