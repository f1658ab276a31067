from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from admission.spec import parse_spec
from runners.agent.assignment import Assignment
from runners.agent.clock import now
from runners.agent.executors.docker import DockerExecutor
from runners.agent.executors.docker_adapter import DockerAdapter
from runners.agent.executors.images import ensure_python_image

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from runners.agent.executors.base import Executor, Exit

LABELS = {"wharfinger.instance": f"test-{os.getpid()}"}


def assignment(command: list[str], run: int = 1, epoch: int = 1, **spec: Any) -> Assignment:
    secrets = spec.pop("secrets_given", {})
    return Assignment(
        run=run, epoch=epoch, attempt=1, tenant="t", spec=parse_spec({"command": command, **spec}), secrets=secrets
    )


def execute(
    executor: Executor, given: Assignment, seconds: float | None = 30, labels: dict[str, str] | None = None
) -> tuple[Exit, bytes]:
    """One whole execution: the end, and its output."""
    output = bytearray()
    execution = executor.start(given, output.extend, labels or LABELS)
    try:
        end = execution.wait(None if seconds is None else now() + seconds)
    finally:
        execution.remove()
    return end, bytes(output)


def eventually(condition: Callable[[], object], seconds: float = 10) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "did not become true in time"
        time.sleep(0.02)


@pytest.fixture(scope="session")
def local_image() -> str:
    adapter = DockerAdapter()
    image = ensure_python_image(adapter=adapter)
    adapter.close()
    return image


@pytest.fixture(scope="session")
def docker_executor(local_image: str) -> Iterator[DockerExecutor]:
    executor = DockerExecutor(image_aliases={"python:3-slim": local_image})
    yield executor
    executor.sweep(LABELS)
    executor.adapter.close()


@pytest.fixture
def adapter() -> Iterator[DockerAdapter]:
    made = DockerAdapter()
    yield made
    made.close()


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # Not below pytest's own directory: other users' runs must get through, and every session closes that one again.
    place = Path(tempfile.mkdtemp(prefix="wharfinger-scratch."))
    place.chmod(0o711)
    monkeypatch.setenv("CONTROLPLANE_SCRATCH_DIR", str(place / "scratch"))
    yield place / "scratch"
    shutil.rmtree(place)
