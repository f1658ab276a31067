"""The state table of a run, once. The database refuses every transition that is not in it (migration 0002).

    queued    -> admitted | cancelled | failed | timed_out
    admitted  -> running | queued | failed | cancelled | timed_out | interrupted
    running   -> succeeded | failed | cancelled | timed_out | interrupted | queued (retry)

`admitted`: its driver has it and it holds its permits; not yet started. "No runner", "set aside" and "queue deadline"
are reasons on `failed` and `timed_out`, not states.
"""

from __future__ import annotations

from typing import Final

from django.db.models import TextChoices


class RunState(TextChoices):
    """Where a run stands."""

    QUEUED = "queued"
    ADMITTED = "admitted"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    INTERRUPTED = "interrupted"


HOLDING: Final = (RunState.ADMITTED, RunState.RUNNING)
"""States that hold compute, permits and a driver."""

TERMINAL: Final = (
    RunState.SUCCEEDED,
    RunState.FAILED,
    RunState.CANCELLED,
    RunState.TIMED_OUT,
    RunState.INTERRUPTED,
)

TRANSITIONS: Final[dict[RunState, tuple[RunState, ...]]] = {
    RunState.QUEUED: (RunState.ADMITTED, RunState.CANCELLED, RunState.FAILED, RunState.TIMED_OUT),
    RunState.ADMITTED: (
        RunState.RUNNING,
        RunState.QUEUED,
        RunState.FAILED,
        RunState.CANCELLED,
        RunState.TIMED_OUT,
        RunState.INTERRUPTED,
    ),
    RunState.RUNNING: (
        RunState.SUCCEEDED,
        RunState.FAILED,
        RunState.CANCELLED,
        RunState.TIMED_OUT,
        RunState.INTERRUPTED,
        RunState.QUEUED,
    ),
    RunState.SUCCEEDED: (),
    RunState.FAILED: (),
    RunState.CANCELLED: (),
    RunState.TIMED_OUT: (),
    RunState.INTERRUPTED: (),
}


class DriverKind(TextChoices):
    """Who executes a run."""

    REPLICA = "replica"
    RUNNER = "runner"


class Scope(TextChoices):
    """What a counter limits. Counters are locked in the alphabetical order of scope, then key: the hot one, the
    tenant's, comes last."""

    HARNESS = "harness"
    KEY = "key", "concurrency key"
    SESSION = "session"
    TENANT = "tenant"
