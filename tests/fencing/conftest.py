from __future__ import annotations

import pytest

from runners.agent.executors.docker_adapter import DockerAdapter
from runners.agent.executors.images import ensure_python_image


@pytest.fixture(scope="session")
def local_image() -> str:
    adapter = DockerAdapter()
    image = ensure_python_image(adapter=adapter)
    adapter.close()
    return image
