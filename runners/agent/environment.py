"""The environment variables of a run, the same for each executor."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from runners.agent.executors.base import ExecutorError

if TYPE_CHECKING:
    from runners.agent.assignment import Assignment

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def run_environment(assignment: Assignment, home: str) -> dict[str, str]:
    """Fixed names first, then the specification's, then secrets: a secret is never shadowed by a plain value.

    Secrets travel as variables, never in the argument vector that every user of the machine can read.
    """
    wrong = [name for name in assignment.secrets if not _NAME.fullmatch(name)]
    if wrong:
        raise ExecutorError(
            f"secret {wrong[0]!r} cannot be an environment variable; rename it to letters, digits and _"
        )
    own = {
        "HOME": home,
        "WHARFINGER_RUN": str(assignment.run),
        "WHARFINGER_ATTEMPT": str(assignment.attempt),
    }
    return {**own, **assignment.spec.env, **assignment.secrets}
