"""What is not an execution takes no place and is not held up at full capacity (rules P2, P14)."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from uuid import uuid4

import docker
import pytest

from runners.agent.executors.docker_adapter import DEFAULT_ENDPOINT, DockerAdapter
from tests.physical_docker.world import Instance, Observer, eventually, remains
from tests.runners.agent.registry import Registry

NESTED = "sh -c 'for n in 1 2 3; do sh -c \"sh -c true\" || exit 9; done; while ! [ -e /tmp/go ]; do sleep 0.05; done'"


@pytest.mark.rule("P2", "P14", "P15")
def test_at_full_capacity_pulls_builds_and_probes_run_and_count_for_nothing(
    instance: Instance, observer: Observer, tmp_path: Path
) -> None:
    launcher = instance.launcher(2)
    for number in range(3):
        launcher.run(number, "sleep 600")
    eventually(lambda: instance.running() == 2, 60)
    adapter, sdk = DockerAdapter(), docker.APIClient(base_url=DEFAULT_ENDPOINT)
    name = f"exempt-{uuid4().hex[:12]}"
    try:
        with Registry(name) as registry:
            registry.release.set()
            adapter.pull(registry.reference)
            assert adapter.image_id(registry.reference) is not None
            sdk.remove_image(registry.reference, force=True)
        adapter.import_image(_archive(tmp_path), name, "built", [])
        assert adapter.image_id(f"{name}:built") is not None
        _probe(sdk, instance.image)
        # None of it was taken for an execution, none of it waited, and the third still does.
        remains(lambda: (instance.running(), len(instance.containers()), instance.holders()) == (2, 2, 2))
        counts = instance.snapshot().counts
        assert (counts.running, counts.reserved, counts.recovering, counts.waiting) == (2, 0, 0, 1)
        assert observer.count("create") == 2
    finally:
        if adapter.image_id(f"{name}:built") is not None:
            sdk.remove_image(f"{name}:built", force=True)
        sdk.close()
        adapter.close()


def _archive(tmp_path: Path) -> Path:
    path = tmp_path / "image.tar"
    with tarfile.open(path, "w") as archive:
        entry = tarfile.TarInfo("made-for")
        entry.size = 4
        archive.addfile(entry, io.BytesIO(b"test"))
    return path


def _probe(sdk: docker.APIClient, image: str) -> None:
    """A container that is none of the instance's executions, as a pool's or a proxy's."""
    made = sdk.create_container(image, ["true"], host_config=sdk.create_host_config(network_mode="none"))["Id"]
    try:
        sdk.start(made)
        assert sdk.wait(made)["StatusCode"] == 0
    finally:
        sdk.remove_container(made, force=True)


@pytest.mark.rule("P2")
def test_nested_work_takes_nothing_more_and_cannot_wait_for_itself(instance: Instance, observer: Observer) -> None:
    launchers = [instance.launcher(2), instance.launcher(2)]
    for number in range(4):
        launchers[number % 2].run(number, NESTED)
    eventually(lambda: instance.running() == 2, 60)
    remains(lambda: instance.holders() == 2)
    for ended in range(1, 5):
        victim = next(c for c, state in instance.containers().items() if state == "running")
        instance.adapter.kill(victim, "SIGKILL")
        eventually(lambda n=ended: observer.count("destroy") == n, 30)
        eventually(lambda n=ended: observer.count("start") == min(2 + n, 4), 30)
    eventually(lambda: sum(len(one.all("done")) for one in launchers) == 4, 30)
    assert observer.peak("create", "destroy") == 2
