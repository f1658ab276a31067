"""From the environment to the keeper of places: once for each process, before it executes anything (rules P3, P4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from admission.physical.entitlement import EntitlementRefused, Unrestricted, resolve
from admission.physical.errors import PhysicalError
from admission.physical.redis_adapter import RedisServer
from runners.agent.executors.base import ExecutorError
from runners.agent.executors.slots import UNRESTRICTED, SlotKeeper
from runners.agent.physical.keeper import PhysicalKeeper, Times

if TYPE_CHECKING:
    from runners.agent.executors.docker_adapter import DockerAdapter

REDIS_URL = "REDIS_URL"


def make_keeper(environment: Mapping[str, str], adapter: DockerAdapter, times: Times | None = None) -> SlotKeeper:
    """What these variables ask for, on this daemon. Nothing is asked of either yet.

    Raises:
        ExecutorError: they cannot be followed; says what to set.
    """
    entitled = resolve(environment)
    if isinstance(entitled, Unrestricted):
        return UNRESTRICTED
    if isinstance(entitled, EntitlementRefused):
        raise ExecutorError(f"this instance may execute nothing: {entitled.message}")
    url = environment.get(REDIS_URL)
    if not url:
        raise ExecutorError(
            f"a limit of {entitled.limit} containers is in force, and {REDIS_URL} is not set: set it to the Redis "
            "that all processes of the instance share"
        )
    try:
        return PhysicalKeeper(RedisServer(url), adapter, entitled, times)
    except PhysicalError as error:
        raise ExecutorError(str(error)) from error
