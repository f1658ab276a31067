from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from runners.agent.executors.docker_adapter import DockerAdapter
from runners.agent.executors.images import ensure_python_image
from tests.physical_docker.world import Instance, Observer
from tests.physical_docker.world import instance as make_instance


@pytest.fixture(scope="session")
def image() -> str:
    adapter = DockerAdapter()
    found = ensure_python_image(adapter=adapter)
    adapter.close()
    return found


@pytest.fixture
def instance(tmp_path: Path, image: str) -> Iterator[Instance]:
    with make_instance(tmp_path, image) as made:
        yield made


@pytest.fixture
def observer(instance: Instance) -> Iterator[Observer]:
    made = Observer(instance.hash)
    yield made
    made.close()
