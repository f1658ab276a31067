"""An image that takes long to come, with a real daemon: reported, and no time of the run (rule Q5)."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from runners.agent.driver import Driver
from runners.agent.executors.base import ImageUnavailable
from runners.agent.executors.docker import DockerExecutor
from runners.agent.executors.docker_adapter import DockerAdapter
from tests.runners.agent.conftest import LABELS, assignment, eventually
from tests.runners.agent.registry import Registry
from tests.runners.agent.stub import StubControl

pytestmark = [pytest.mark.rule("Q5"), pytest.mark.timeout(120)]


@pytest.fixture
def registry(adapter: DockerAdapter) -> Iterator[Registry]:
    with Registry(f"slow-{uuid4().hex[:12]}") as registry:
        yield registry
    if adapter.image_id(registry.reference) is not None:
        adapter._client().remove_image(registry.reference, force=True)


@pytest.fixture
def executor() -> Iterator[DockerExecutor]:
    executor = DockerExecutor()
    yield executor
    executor.sweep(LABELS)
    executor.adapter.close()


def test_a_run_is_not_started_until_its_image_is_there_and_the_pull_is_reported(
    registry: Registry, executor: DockerExecutor, adapter: DockerAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runners.agent.preparing.REPORT_SECONDS", 0.1)
    control = StubControl([assignment(["/made-for"], image=registry.reference)])
    driver = Driver(control, executor, slots=1, labels=LABELS, heartbeat_seconds=0.2)
    driver.start()
    try:
        assert registry.asked.wait(30)
        eventually(lambda: control.calls.count(("pulling", 1)) >= 3)
        assert ("start", 1) not in control.calls
        assert adapter.image_id(registry.reference) is None
        registry.release.set()
        # What is in it cannot be executed: a start that was asked for and a container that was made are the point.
        eventually(lambda: control.results, 60)
        assert ("start", 1) in control.calls
        assert adapter.image_id(registry.reference) is not None
        assert executor.prepared(assignment(["x"], image=registry.reference))
    finally:
        assert driver.stop_now(30)


def test_an_image_that_is_not_to_be_had_says_so_before_any_start(registry: Registry, executor: DockerExecutor) -> None:
    other = registry.reference.removesuffix(":1") + ":2"
    with pytest.raises(ImageUnavailable, match="cannot be pulled"):
        executor.prepare(assignment(["x"], image=other), lambda text: None)
    assert not executor.prepared(assignment(["x"], image=other))
