"""The executor that the settings name."""

from __future__ import annotations

import os

from controlplane.core.conf import conf
from runners.agent.executors.base import Executor
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
