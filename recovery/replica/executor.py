"""The executor that the settings name, and the sweep of what a dead incarnation left on this machine."""

from __future__ import annotations

import os

from controlplane.core.conf import conf
from controlplane.core.identity import machine_id, proven_gone
from controlplane.core.sql import Row
from recovery.services.reconcile import LeftoversRemain, Sweep
from runners.agent.executors.base import Executor, ExecutorError
from runners.agent.executors.process import ProcessExecutor
from runners.agent.physical.uncounted import refuse_uncounted

LABEL_DRIVER = "wharfinger.driver"
"""The incarnation that made a container: a sweep must not touch a living one's, nor another fleet's."""


def image_aliases(text: str) -> dict[str, str]:
    """`name=other,…` as a mapping. Raises ValueError naming the part that is wrong."""
    aliases = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, separator, other = part.partition("=")
        if not separator or not name or not other:
            raise ValueError(f"CONTROLPLANE_IMAGE_ALIASES: {part!r} is not of the form name=other")
        aliases[name] = other
    return aliases


def make_executor() -> Executor:
    """The executor named by CONTROLPLANE_EXECUTOR. Raises ExecutorError where it cannot work here."""
    settings = conf()
    if settings.executor == "docker":
        from runners.agent.executors.docker import DockerExecutor  # noqa: PLC0415 - loads the Docker SDK
        from runners.agent.executors.docker_adapter import DockerAdapter  # noqa: PLC0415
        from runners.agent.physical.building import make_keeper  # noqa: PLC0415

        adapter = DockerAdapter()
        return DockerExecutor(adapter, image_aliases(settings.image_aliases), make_keeper(os.environ, adapter))
    refuse_uncounted(os.environ)
    return ProcessExecutor()


def make_sweep(executor: Executor) -> Sweep:
    """Remove a dead incarnation's executions before its runs go to others, where that can be done from here.

    From another machine nothing can be removed: the excess is bounded by what the dead driver ran, as documented.
    """

    def sweep(dead: Row) -> None:
        if dead["machine"] != machine_id() or dead["executor"] != executor.name:
            return
        gone = proven_gone(machine=dead["machine"], boot=dead["boot_id"], pid=dead["pid"], pid_start=dead["pid_start"])
        if not gone:
            # Paused, not dead: its containers are its own to stop when it wakes and finds itself superseded.
            return
        try:
            executor.sweep({LABEL_DRIVER: str(dead["incarnation"])})
        except ExecutorError as error:
            raise LeftoversRemain(f"what it executed could not be removed yet: {error}") from error

    return sweep
