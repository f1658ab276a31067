"""What `up` was asked for, and which executor that means here."""

from __future__ import annotations

from dataclasses import dataclass

from runners.agent.executors.base import ExecutorError
from runners.agent.executors.process import ProcessExecutor

PYTHON_IMAGE = "python:3-slim"


@dataclass(frozen=True, slots=True)
class Options:
    """The command line."""

    replicas: int
    runners: int
    executor: str
    port: int
    once: bool
    as_json: bool
    demo: bool
    problems: int


@dataclass(frozen=True, slots=True)
class Execution:
    """How runs are executed, why so, and what that promises."""

    executor: str
    why: str
    image_aliases: str = ""
    docker_socket: str = ""
    promises: str = ""


class UpError(Exception):
    """`up` cannot go on: what, why, what to do."""


def choose_execution(asked: str) -> Execution:
    """Docker where a daemon answers; the process executor only when asked for, or in this demo where none does."""
    if asked == "process":
        return _process("asked for by --executor process")
    try:
        return _docker("asked for by --executor docker" if asked == "docker" else "a Docker daemon answers")
    except ExecutorError as error:
        if asked == "docker":
            raise UpError(f"--executor docker: {error}") from error
        return _process(f"no container can be made here ({error})")


def _docker(why: str) -> Execution:
    from runners.agent.executors.docker_adapter import DockerAdapter  # noqa: PLC0415 - loads the Docker SDK
    from runners.agent.executors.images import ensure_python_image  # noqa: PLC0415 - loads the Docker SDK

    adapter = DockerAdapter()
    adapter.identity()
    image = ensure_python_image(PYTHON_IMAGE, adapter)
    aliases = "" if image == PYTHON_IMAGE else f"{PYTHON_IMAGE}={image}"
    endpoint = adapter.endpoint
    return Execution(
        executor="docker",
        why=why,
        image_aliases=aliases,
        docker_socket=endpoint.removeprefix("unix://") if endpoint.startswith("unix://") else "",
        promises=f"containers of {image}: no network, read-only root, limits on memory, processors and processes",
    )


def _process(why: str) -> Execution:
    facts = ProcessExecutor().facts()
    group = f"own cgroup {facts.cgroup}" if facts.cgroup != "none" else "no cgroup: process group and resource limits"
    fork_bomb = "contained by the limit on processes" if facts.fork_bomb_contained else "NOT contained here"
    return Execution(
        executor="process",
        why=why,
        promises=f"processes for trusted code: {group}; user: {facts.user}; fork bomb {fork_bomb}",
    )
