"""How much of everything, how often it is broken, and the product's windows scaled down alike."""

from __future__ import annotations

from dataclasses import dataclass

FULL = {
    "runner_lease_seconds": 120.0,
    "runner_heartbeat_seconds": 30.0,
    "runner_poll_seconds": 60.0,
    "start_deadline_seconds": 60.0,
    "pull_seconds": 900.0,
    "claim_replay_seconds": 600.0,
    "late_log_seconds": 600.0,
    "permit_renew_seconds": 600.0,
    "permit_lapse_seconds": 1800.0,
    "reap_interval_seconds": 30.0,
    "sweep_interval_seconds": 5.0,
    "heartbeat_interval_seconds": 10.0,
    "replica_stale_seconds": 90.0,
    "recovery_interval_seconds": 60.0,
    "recovery_claim_ttl_seconds": 300.0,
}
"""As delivered. All are shortened alike: the proportion is what these tests are about."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One form of the test; the code is the same for all."""

    scale: float
    quotas: tuple[int, ...]
    """One tenant for each; the runs are spread in proportion."""
    runs: int
    on_docker: int
    agents: int
    slots: int
    web_workers: int
    seconds: tuple[float, float]
    """Shortest and longest run."""
    web_every: float
    kill_every: float
    cancels: int
    look_every: float
    patience: float
    webs: int = 2

    def windows(self) -> dict[str, float]:
        return {name: value * self.scale for name, value in FULL.items()}

    @property
    def lease(self) -> float:
        return FULL["runner_lease_seconds"] * self.scale


SMALL = Plan(
    scale=0.05,
    quotas=(2, 3, 4, 5),
    runs=150,
    on_docker=0,
    agents=3,
    slots=4,
    web_workers=1,
    seconds=(0.1, 0.8),
    web_every=4.0,
    kill_every=4.0,
    cancels=5,
    look_every=0.1,
    patience=120.0,
)
FULL_LENGTH = Plan(
    scale=0.1,
    quotas=(2, 3, 4, 5, 6, 3, 4, 2),
    runs=5000,
    on_docker=200,
    agents=6,
    slots=4,
    web_workers=2,
    seconds=(0.1, 1.5),
    web_every=10.0,
    kill_every=6.0,
    cancels=100,
    look_every=0.1,
    patience=2400.0,
)
