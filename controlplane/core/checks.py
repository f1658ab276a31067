"""Relations between settings that the rules depend on; each refusal says which value to change."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from django.core import checks

from controlplane.core import fencing
from controlplane.core.conf import ENVIRONMENT_PREFIX, NAMES, ControlPlaneSettings, conf

Relation = tuple[str, bool, str]

SHORTEST_KEY = 16


def _relations(c: ControlPlaneSettings) -> list[Relation]:
    """(check id, holds, what it says). Sources: rules R2, A11, Q6, A16."""
    return [
        (
            "E001",
            0 < c.heartbeat_interval_seconds <= c.replica_stale_seconds / 3,
            (
                "CONTROLPLANE_HEARTBEAT_INTERVAL_SECONDS must be above 0 and at most a third of "
                "CONTROLPLANE_REPLICA_STALE_SECONDS: two lost beats must not declare a replica dead"
            ),
        ),
        (
            "E002",
            0 < c.permit_renew_seconds <= c.permit_lapse_seconds / 3,
            (
                "CONTROLPLANE_PERMIT_RENEW_SECONDS must be above 0 and at most a third of "
                "CONTROLPLANE_PERMIT_LAPSE_SECONDS: two lost renewals must not free a permit in use"
            ),
        ),
        (
            "E003",
            0 < c.runner_heartbeat_seconds <= c.runner_lease_seconds / 3,
            (
                "CONTROLPLANE_RUNNER_HEARTBEAT_SECONDS must be above 0 and at most a third of "
                "CONTROLPLANE_RUNNER_LEASE_SECONDS: two lost heartbeats must not lose a run"
            ),
        ),
        (
            "E004",
            c.recovery_claim_ttl_seconds > 2 * c.recovery_interval_seconds > 0,
            (
                "CONTROLPLANE_RECOVERY_CLAIM_TTL_SECONDS must exceed twice CONTROLPLANE_RECOVERY_INTERVAL_SECONDS: "
                "a claimant must have time to work"
            ),
        ),
    ]


def _ranges(c: ControlPlaneSettings) -> list[Relation]:
    """(check id, holds, what it says). Source: rule A21; without the others nothing would run, or not as promised."""
    return [
        ("E005", c.fence in ("off", "strict"), "CONTROLPLANE_FENCE must be 'off' or 'strict'"),
        (
            "E006",
            min(c.replica_slots, c.admission_batch, c.recovery_batch_size, c.unstarted_limit) >= 1,
            "slots, batch sizes and CONTROLPLANE_UNSTARTED_LIMIT must be at least 1",
        ),
        (
            "E007",
            0 < c.queue_depth_tenant <= c.queue_depth_global < 2**31,
            "CONTROLPLANE_QUEUE_DEPTH_TENANT must be above 0 and at most CONTROLPLANE_QUEUE_DEPTH_GLOBAL",
        ),
        (
            "E008",
            c.executor in ("docker", "process"),
            "CONTROLPLANE_EXECUTOR must be 'docker', or 'process' to run trusted code without a container",
        ),
        (
            "E009",
            min(c.start_deadline_seconds, c.sweep_interval_seconds, c.claim_replay_seconds, c.log_cap_bytes) > 0,
            "deadlines, intervals and caps must be above 0",
        ),
        (
            "E034",
            0 < c.runner_poll_seconds <= 60.0 and c.web_threads >= 1,
            ("CONTROLPLANE_RUNNER_POLL_SECONDS must be above 0 and at most 60, CONTROLPLANE_WEB_THREADS at least 1"),
        ),
        (
            "E031",
            c.pull_seconds >= c.start_deadline_seconds
            and min(c.no_runner_seconds, c.late_log_seconds, c.token_overlap_seconds) >= 0,
            (
                "CONTROLPLANE_PULL_SECONDS must be at least CONTROLPLANE_START_DEADLINE_SECONDS, and the seconds for "
                "late logs, old tokens and runs without a runner not below 0"
            ),
        ),
        ("E030", c.probe_seconds > 0, "CONTROLPLANE_PROBE_SECONDS must be above 0"),
        *_leadership_relations(c),
        *_kept(c),
    ]


def _kept(c: ControlPlaneSettings) -> list[Relation]:
    """Sources: rules Q8, Q13."""
    file = Path(c.secrets_keys_file)
    keys = [key.strip() for key in c.secrets_keys.split(",") if key.strip()]
    return [
        (
            "E060",
            all(len(key) >= SHORTEST_KEY for key in keys),
            (
                f"each key in CONTROLPLANE_SECRETS_KEYS must have at least {SHORTEST_KEY} characters; "
                "make one with: openssl rand -base64 32"
            ),
        ),
        (
            "E061",
            not c.secrets_keys_file or (file.is_file() and os.access(file, os.R_OK)),
            "CONTROLPLANE_SECRETS_KEYS_FILE must name a file that this process can read",
        ),
        (
            "E062",
            0 < c.artifact_file_bytes <= c.artifact_run_bytes and c.artifact_count > 0,
            (
                "CONTROLPLANE_ARTIFACT_FILE_BYTES must be above 0 and at most CONTROLPLANE_ARTIFACT_RUN_BYTES, and "
                "CONTROLPLANE_ARTIFACT_COUNT above 0"
            ),
        ),
        (
            "E063",
            min(c.log_retention_days, c.artifact_retention_days, c.artifact_upload_seconds) > 0,
            "retention times and CONTROLPLANE_ARTIFACT_UPLOAD_SECONDS must be above 0",
        ),
    ]


def _leadership_relations(c: ControlPlaneSettings) -> list[Relation]:
    """Sources: rules L1, L3, L5, L6."""
    return [
        (
            "E040",
            0 < c.leader_renew_seconds <= c.leader_lease_seconds / 3,
            (
                "CONTROLPLANE_LEADER_RENEW_SECONDS must be above 0 and at most a third of "
                "CONTROLPLANE_LEADER_LEASE_SECONDS: belief ends one renewal before the lease does"
            ),
        ),
        (
            "E041",
            0 < c.leader_tick_seconds <= c.leader_renew_seconds / 2 and c.ticker_seconds > 0,
            (
                "CONTROLPLANE_LEADER_TICK_SECONDS must be above 0 and at most half of "
                "CONTROLPLANE_LEADER_RENEW_SECONDS, and CONTROLPLANE_TICKER_SECONDS above 0"
            ),
        ),
        (
            "E042",
            0 < 2 * c.sweep_transaction_seconds <= c.fire_silent_seconds,
            (
                "CONTROLPLANE_FIRE_SILENT_SECONDS must be at least twice CONTROLPLANE_SWEEP_TRANSACTION_SECONDS: "
                "a sweep in its longest transaction must not be taken for dead"
            ),
        ),
        (
            "E043",
            min(c.reap_interval_seconds, c.audit_interval_seconds, c.sweep_budget_seconds, c.stuck_seconds) > 0
            and c.reap_interval_seconds < c.permit_renew_seconds / 2,
            (
                "intervals of sweeps must be above 0, and CONTROLPLANE_REAP_INTERVAL_SECONDS below half of "
                "CONTROLPLANE_PERMIT_RENEW_SECONDS: a longer gap between passes counts as an outage"
            ),
        ),
        (
            "E044",
            not c.notify_webhook_url or c.notify_webhook_url.startswith(("http://", "https://")),
            "CONTROLPLANE_NOTIFY_WEBHOOK_URL must be empty or begin with http:// or https://",
        ),
    ]


def _fence(c: ControlPlaneSettings) -> list[Relation]:
    """(check id, holds, what it says). Source: rule A16. Silent where nothing is fenced: the values mean nothing."""
    if c.fence != "strict":
        return []
    windows = (
        ("E021", "REPLICA_STALE_SECONDS", c.replica_stale_seconds, "HEARTBEAT_INTERVAL_SECONDS"),
        ("E022", "RUNNER_LEASE_SECONDS", c.runner_lease_seconds, "RUNNER_HEARTBEAT_SECONDS"),
        ("E023", "PERMIT_LAPSE_SECONDS", c.permit_lapse_seconds, "PERMIT_RENEW_SECONDS"),
    )
    return [
        (
            "E020",
            c.fence_stop_seconds > 0 and c.fence_drift_seconds >= 0,
            "CONTROLPLANE_FENCE_STOP_SECONDS must be above 0 and CONTROLPLANE_FENCE_DRIFT_SECONDS not below 0",
        ),
        *(
            (
                number,
                fencing.fence_seconds(take, c) >= 2 * getattr(c, renewal.lower()),
                (
                    f"CONTROLPLANE_{window} leaves no room for CONTROLPLANE_FENCE=strict: less the time to stop, the "
                    f"clock's drift and {fencing.TICK_SECONDS:g} s it is {fencing.fence_seconds(take, c):g} s, and "
                    f"must be at least twice CONTROLPLANE_{renewal}, or one lost renewal would stop the work"
                ),
            )
            for number, window, take, renewal in windows
        ),
    ]


@checks.register("controlplane")
def check_settings(**_: Any) -> list[checks.CheckMessage]:
    """Refuse settings that contradict each other, and warn of names that mean nothing."""
    messages: list[checks.CheckMessage] = [
        checks.Error(text, hint="Change what it names in the environment.", id=f"controlplane.{number}")
        for number, holds, text in (*_relations(conf()), *_ranges(conf()), *_fence(conf()))
        if not holds
    ]
    unknown = sorted(n for n in os.environ if n.startswith(ENVIRONMENT_PREFIX) and n not in NAMES)
    messages += [
        checks.Warning(f"{name} is set but is no setting", hint="See docs/settings.md.", id="controlplane.W001")
        for name in unknown
    ]
    return messages
