"""Removing containers with proof: one by its full id, or all that bear given labels."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from runners.agent.clock import now
from runners.agent.executors import scratch
from runners.agent.executors.base import ExecutorError
from runners.agent.executors.docker_adapter import DockerAdapter, NotFound, Refused

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

REMOVE_SECONDS = 50.0
# The daemon kills in parallel; one after the other, the last of many would run on for as long as the others take.
AT_ONCE = 8


def remove_confirmed(adapter: DockerAdapter, container: str) -> None:
    """Remove by full id until the daemon answers 404 for it.

    Raises:
        ExecutorError: when that was not seen; the container must then be taken to exist.
    """
    until = now() + REMOVE_SECONDS
    pause, problem = 0.05, ""
    while True:
        try:
            adapter.remove(container)
        except NotFound:
            problem = "remove says it is not there, inspect says it is"
        except Refused as error:
            problem = str(error)
        if adapter.is_gone(container):
            return
        if now() >= until:
            raise ExecutorError(f"container {container} is still there ({problem or 'no reason given'})")
        time.sleep(pause)
        pause = min(pause * 2, 2.0)


def remove_all(adapter: DockerAdapter, labels: Mapping[str, str], spare: Collection[str] = ()) -> int:
    """Remove every container with all these labels, in any state, and confirm each; returns how many there were.

    Those whose full id is in `spare` are left alone: somebody looks after them.

    Raises:
        ExecutorError: one of them is not confirmed gone. The others were tried all the same.
    """
    if not labels:
        raise ExecutorError("a sweep without labels would remove every container of this machine")
    found = {container: name for container, name in adapter.list_ids(labels).items() if container not in spare}
    if not found:
        return 0
    with ThreadPoolExecutor(min(AT_ONCE, len(found))) as pool:
        # Killed first, all of them: a removal may take long, and until it is done the container would go on executing.
        killed = [pool.submit(adapter.kill, container, "SIGKILL") for container in found]
        removed = [pool.submit(_remove, adapter, container, name) for container, name in found.items()]
    failures = [error for done in removed if isinstance(error := done.exception(), ExecutorError)]
    for done in (*killed, *removed):
        if (error := done.exception()) is not None and not isinstance(error, ExecutorError):
            raise error
    if failures:
        raise failures[0]
    return len(found)


def _remove(adapter: DockerAdapter, container: str, name: str) -> None:
    remove_confirmed(adapter, container)
    scratch.remove_tree(scratch.base_directory() / name)
