"""Every tunable of the control plane in one place: name with unit, default, meaning.

Each field is the environment variable `CONTROLPLANE_<NAME>`. Relations between them are proved at start by
`controlplane.core.checks`; a value that would break a rule of the contract is refused there, not corrected.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

from django.conf import settings
from django.core.signals import setting_changed


def _doc(default: Any, meaning: str) -> Any:
    return field(default=default, metadata={"doc": meaning})


@dataclass(frozen=True, slots=True)
class ControlPlaneSettings:
    """Defaults of the contract. Durations are seconds unless the name says otherwise."""

    replica_id: str = _doc("", "Pinned identity of this replica; must be unique. Empty: host name and process.")
    callback_base_url: str = _doc("", "How external services reach the load balancer.")
    fence: str = _doc("off", "'strict': a cut-off driver stops its containers before its runs can be taken.")
    fence_stop_seconds: float = _doc(30.0, "Strict: longest time to stop a driver's containers and see them gone.")
    fence_drift_seconds: float = _doc(1.0, "Strict: what a local clock may lose against the database's in one window.")
    instance_id: str = _doc("", "Names the set of processes that share one container cap.")
    fleet_secret: str = _doc("", "Its presence marks a hosted instance.")
    worker_concurrency: str = _doc("", "Hosted tier: 2, 6 or 12.")
    run_limit: str = _doc("", "Self-hosted container cap; empty: none.")
    run_generation: str = _doc("", "Generation of the cap; empty: 0.")
    replica_slots: int = _doc(4, "Runs that one replica executes at once.")
    replica_memory_mib: int = _doc(0, "Memory in use on its machine up to which a replica admits; 0: not bounded.")
    replica_cpu: float = _doc(0.0, "Processors busy on its machine up to which a replica admits; 0: not bounded.")
    probe_seconds: float = _doc(5.0, "Between two samples of a replica's machine; one older than two is unknown.")
    executor: str = _doc("docker", "How replicas execute: 'docker', or 'process' for trusted code only.")
    image_aliases: str = _doc("", "name=other,…: images to use where the named one is absent and cannot be pulled.")
    scratch_dir: str = _doc("", "Where input files wait for their container; the daemon must see the same path.")
    heartbeat_interval_seconds: float = _doc(10.0, "Between two beats of a replica.")
    replica_stale_seconds: float = _doc(90.0, "Silence after which a replica's runs may be taken.")
    recovery_interval_seconds: float = _doc(60.0, "Between two reconciliation ticks; jitter of 0-500 ms is added.")
    recovery_claim_ttl_seconds: float = _doc(300.0, "A claimant of a dead replica is succeeded after this.")
    recovery_batch_size: int = _doc(2000, "Runs taken over in one transaction.")
    recovery_log_retention_days: float = _doc(90.0, "What recovery did, and paid debts, are deleted after this.")
    permit_renew_seconds: float = _doc(600.0, "Between two renewals of a driver's permits.")
    permit_lapse_seconds: float = _doc(1800.0, "A permit not renewed for this long may be reaped.")
    start_deadline_seconds: float = _doc(60.0, "From admission to accepted start.")
    unstarted_limit: int = _doc(5, "Unstarted admissions in a row that burn one attempt.")
    runner_lease_seconds: float = _doc(120.0, "A silent runner's runs may be taken after this.")
    runner_heartbeat_seconds: float = _doc(30.0, "Heartbeat interval told to runners.")
    runner_poll_seconds: float = _doc(60.0, "A waiting claim is held for this long, or half a lease, at most.")
    web_threads: int = _doc(8, "Requests that one web process serves at once; claims that wait are not counted.")
    pull_seconds: float = _doc(900.0, "From admission to accepted start at most, while an image pull is reported.")
    token_overlap_seconds: float = _doc(86_400.0, "A rotated runner's old token opens for so long, or until the new.")
    no_runner_seconds: float = _doc(300.0, "Without a living driver that could take it, a run that asked so fails.")
    late_log_seconds: float = _doc(600.0, "How long after its end the rest of an attempt's output is taken.")
    claim_replay_seconds: float = _doc(600.0, "How long a claim's answer can be asked for again.")
    drain_seconds: float = _doc(30.0, "How long a clean stop waits for running work.")
    leader_lease_seconds: float = _doc(30.0, "A leader that does not renew for this long may be replaced.")
    leader_renew_seconds: float = _doc(10.0, "Between two renewals; belief ends this long before the lease does.")
    leader_tick_seconds: float = _doc(1.0, "Between two looks of each replica at the lease.")
    ticker_seconds: float = _doc(0.5, "Between two looks of the leader at what is due.")
    sweep_transaction_seconds: float = _doc(10.0, "Longest transaction of a sweep; a takeover waits for one at most.")
    sweep_budget_seconds: float = _doc(60.0, "A sweep that took this long leaves the rest to its next fire.")
    fire_silent_seconds: float = _doc(30.0, "A started sweep without progress for this long is recorded as failed.")
    fire_untaken_seconds: float = _doc(30.0, "Alarm: a sweep was enqueued, and no qcluster took it for this long.")
    fire_retention_days: float = _doc(
        7.0, "Sweeps that succeeded are forgotten after this; failed ones after 4 times."
    )
    sample_retention_days: float = _doc(30.0, "Samples for the charts are deleted after this.")
    reap_interval_seconds: float = _doc(30.0, "Between two passes over lapsed permits.")
    audit_interval_seconds: float = _doc(60.0, "Between two audits of counters against their permits.")
    stuck_seconds: float = _doc(600.0, "A cancel unanswered for this long is reported as a stuck run.")
    stuck_queued_seconds: float = _doc(86_400.0, "A run queued for this long is reported as a stuck run.")
    notify_email: str = _doc("", "a@example.org,…: who is told of stuck runs; empty: the log only.")
    notify_webhook_url: str = _doc("", "Who is told of stuck runs by a JSON POST, also; may be told twice.")
    sweep_interval_seconds: float = _doc(5.0, "Between two passes over deadlines and leases.")
    queue_depth_global: int = _doc(1_000_000, "Queued runs over all tenants; beyond it submits get 429.")
    queue_depth_tenant: int = _doc(100_000, "Queued runs of one tenant; beyond it submits get 429.")
    admission_batch: int = _doc(100, "Runs admitted in one transaction at most.")
    metrics_token: str = _doc(
        "", "What a scraper of /metrics sends as its bearer token; empty: operators' tokens only."
    )
    metrics_tenants: int = _doc(100, "So many of the fullest tenants have metrics of their own.")
    log_cap_bytes: int = _doc(16 << 20, "Stored output of one attempt; the rest is cut, visibly.")
    log_retention_days: float = _doc(30.0, "Output is deleted this long after the run ended.")
    secrets_keys: str = _doc(
        "", "key,key,…: what secrets are encrypted with; the first encrypts, each decrypts. Empty: SECRET_KEY."
    )
    secrets_keys_file: str = _doc("", "File with such keys, one a line, after those named directly.")
    artifact_dir: str = _doc("", "Where artifacts are stored; empty: the user's data directory.")
    artifact_bucket: str = _doc("", "S3 bucket for artifacts instead (extra `s3`); the rest by AWS_* variables.")
    artifact_file_bytes: int = _doc(256 << 20, "Size of one kept file at most.")
    artifact_run_bytes: int = _doc(1 << 30, "Size of all that one attempt keeps at most.")
    artifact_count: int = _doc(1000, "Files that one attempt keeps at most.")
    artifact_retention_days: float = _doc(30.0, "Artifacts are deleted this long after the run ended.")
    artifact_upload_seconds: float = _doc(3600.0, "An upload that did not finish within this is given up and deleted.")

    @property
    def longest_poll_seconds(self) -> float:
        """A runner that waits must be heard of within its lease, however short that is set."""
        return min(self.runner_poll_seconds, self.runner_lease_seconds / 2)


ENVIRONMENT_PREFIX = "CONTROLPLANE_"
NAMES = {ENVIRONMENT_PREFIX + f.name.upper(): f for f in fields(ControlPlaneSettings)}


@lru_cache(maxsize=1)
def conf() -> ControlPlaneSettings:
    """The settings in force; read once, again after a test overrides them."""
    return ControlPlaneSettings(**settings.CONTROLPLANE)


def _forget(*, setting: str, **_: Any) -> None:
    if setting == "CONTROLPLANE":
        conf.cache_clear()


setting_changed.connect(_forget, dispatch_uid="controlplane.core.conf")
