"""The executor without containers, where containers are limited. It needs neither Redis nor Docker clients."""

from __future__ import annotations

from collections.abc import Mapping

from admission.physical.entitlement import Unrestricted, resolve
from runners.agent.executors.base import ExecutorError


def refuse_uncounted(environment: Mapping[str, str]) -> None:
    """For executors without containers: nothing would hold the limit, so nothing may be executed under one.

    Raises:
        ExecutorError: a limit is in force, or would be if the variables were right.
    """
    if not isinstance(resolve(environment), Unrestricted):
        raise ExecutorError(
            "a limit of containers is set for this instance, and the process executor makes none that could be "
            "counted: use the docker executor, or unset the limit"
        )
