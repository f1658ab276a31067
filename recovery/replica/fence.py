"""A replica's fence: its beats carry all its runs, and its permits lapse one by one (rule A16)."""

from __future__ import annotations

from collections.abc import Mapping

from controlplane.core.fencing import replica_fence
from runners.agent.events import OnEvent
from runners.agent.executors.base import Executor
from runners.agent.fence import Fence
from runners.agent.watchdog_process import make_fence


def make_replica_fence(
    executor: Executor, labels: Mapping[str, str], on_event: OnEvent, registered_at: float
) -> Fence | None:
    """None: fencing is off. `registered_at`: the local clock before the registration, which is the first beat."""
    windows = replica_fence()
    if windows is None:
        return None
    return make_fence(
        executor,
        labels,
        on_event,
        windows.permit_seconds,
        beat_seconds=windows.beat_seconds,
        vouched_at=registered_at,
    )
