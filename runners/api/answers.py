"""What the answers to runners carry, for the views and for the claims that wait alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from controlplane.core.conf import conf
from controlplane.core.fencing import runner_fence_seconds
from runners.services.claims import Claimed
from runners.services.fleet import RunnerIdentity
from runners.services.jobs import issue_job_token

POLL_SECONDS = 0.5
"""Between two claims of a runner whose claims are answered at once."""


def intervals(runner: RunnerIdentity) -> dict[str, Any]:
    """What every answer carries."""
    return {
        "heartbeat_seconds": conf().runner_heartbeat_seconds,
        "poll_seconds": POLL_SECONDS,
        "wait_seconds": conf().longest_poll_seconds,
        "fence_seconds": runner_fence_seconds(),
        "mode": runner.mode,
        "cancel": [{"run": run, "epoch": epoch} for run, epoch in runner.cancels],
    }


def assignment(runner: RunnerIdentity, claimed: Claimed, state: str) -> dict[str, Any]:
    """One run to start."""
    return {
        "run": claimed.run,
        "epoch": claimed.epoch,
        "attempt": claimed.attempt,
        "tenant": claimed.tenant,
        "spec": claimed.spec,
        "job_token": issue_job_token(run=claimed.run, epoch=claimed.epoch, runner=runner.id),
        "secrets": dict(claimed.secrets),
        "state": state,
    }


def claim_answer(runner: RunnerIdentity, claimed: Sequence[Claimed] | None) -> dict[str, Any] | None:
    """The answer to a claim; null when there is nothing to say (204)."""
    if claimed is None and not runner.cancels:
        return None
    return {"assignments": [assignment(runner, one, "admitted") for one in claimed or []], **intervals(runner)}


def nothing_headers(runner: RunnerIdentity, poll_seconds: float) -> dict[str, str]:
    """What a 204 carries instead of a body."""
    return {"Poll-Seconds": f"{poll_seconds:g}", "Runner-Mode": runner.mode}
