"""Bounding what a container writes into its own layer: measured now and then, for the daemon bounds only a tmpfs.

Between two looks a run may go beyond; one file never grows beyond the limit (RLIMIT_FSIZE).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from admission.spec import MIB
from runners.agent.clock import now
from runners.agent.executors.base import ExecutorError

if TYPE_CHECKING:
    from admission.spec import RunSpec
    from runners.agent.executors.docker_adapter import DockerAdapter

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
REASON = "disk"


def watch(adapter: DockerAdapter, container: str, spec: RunSpec) -> DiskWatch | None:
    """Of a container that keeps something; the others write to a bounded tmpfs."""
    return DiskWatch(adapter, container, spec.resources.disk_mib, now()) if spec.artifacts else None


class DiskWatch:
    """One container's. `next` is when to look again."""

    def __init__(self, adapter: DockerAdapter, container: str, limit_mib: int, began: float) -> None:
        self.next = began + LOOK_SECONDS
        self.written = 0
        self._adapter = adapter
        self._container = container
        self._limit = limit_mib * MIB

    def is_full(self, moment: float) -> bool:
        """Look, if it is time to; True when more is written than may be."""
        if moment < self.next:
            return False
        self.next = moment + LOOK_SECONDS
        try:
            self.written = self._adapter.written_bytes(self._container)
        except ExecutorError as error:
            # Not known is not full; the daemon is asked again.
            log.warning("%s", error)
        return self.written > self._limit

    @property
    def detail(self) -> str:
        """For the result."""
        return f"it wrote {self.written // MIB} MiB; resources.disk_mib is {self._limit // MIB}"
