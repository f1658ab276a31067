"""What admission to a physical slot costs: the same container, by the executor under a limit and by the SDK alone.

Both sides make the container from the same body, run `true` to its end and remove it, in turns on one daemon. The
executor's side also verifies the limits, keeps the output, registers with the ledger in Redis and proves the removal.
"""

from __future__ import annotations

import logging
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import docker

from admission.physical.redis_adapter import RedisServer
from admission.spec import parse_spec
from benchmarks.report import Row, interleaved
from controlplane.embedded import EmbeddedValkey, Home
from runners.agent.assignment import Assignment
from runners.agent.events import log_event
from runners.agent.executors import container_config
from runners.agent.executors.docker import DockerExecutor
from runners.agent.executors.docker_adapter import DockerAdapter
from runners.agent.executors.images import ensure_python_image
from runners.agent.executors.slots import SlotKeeper
from runners.agent.physical.building import make_keeper
from runners.agent.physical.daemon import LABEL_RECORD
from runners.agent.physical.keeper import PhysicalKeeper

BAR = 1.10
LIMIT = 2


@contextmanager
def _redis() -> Iterator[str]:
    if url := os.environ.get("REDIS_URL"):
        yield url
        return
    place = Path(tempfile.mkdtemp(prefix="wharfinger-bench."))
    place.chmod(0o711)
    server = EmbeddedValkey(Home.open(place / "home"))
    server.start()
    try:
        yield server.url()
    finally:
        server.stop()
        shutil.rmtree(place)


def _drop(data: bytes) -> None:
    """The output is delivered and of no use here."""


class _Pair:
    """Makes the same container in both ways."""

    def __init__(self, image: str, adapter: DockerAdapter, keeper: SlotKeeper) -> None:
        self._image = image
        self._executor = DockerExecutor(adapter, slots=keeper)
        self._client = docker.APIClient(base_url=adapter.endpoint, timeout=120)
        self._number = 0

    def _assignment(self) -> Assignment:
        self._number += 1
        spec = parse_spec({"image": self._image, "command": ["true"]})
        return Assignment(run=self._number, epoch=1, attempt=1, tenant="bench", spec=spec)

    def admitted(self) -> float:
        given = self._assignment()
        begun = time.perf_counter()
        execution = self._executor.start(given, _drop, {"wharfinger.bench": "ours"})
        end = execution.wait(None)
        execution.remove()
        seconds = time.perf_counter() - begun
        if end.code != 0:
            raise RuntimeError(f"the container did not end well: {end}")
        return seconds

    def bare(self) -> float:
        given, has_init = self._assignment(), self._executor.daemon.has_init
        labels = {"wharfinger.bench": "bare"}
        body = container_config.container_config(given, self._image, labels, None, with_init=has_init)
        begun = time.perf_counter()
        made = self._client.create_container_from_config(body)["Id"]
        self._client.start(made)
        self._client.wait(made)
        self._client.remove_container(made, v=True, force=True)
        return time.perf_counter() - begun

    def close(self) -> None:
        self._client.close()


def measure(pairs: int) -> list[Row]:
    """The median of the ratios of neighbours; the bar is on it."""
    adapter = DockerAdapter()
    image = ensure_python_image(adapter=adapter)
    with _redis() as url:
        environment = {
            "REDIS_URL": url,
            "CONTROLPLANE_INSTANCE_ID": f"bench-{uuid4().hex}",
            "CONTROLPLANE_RUN_LIMIT": str(LIMIT),
        }
        keeper = make_keeper(environment, adapter)
        logging.disable(logging.INFO)
        keeper.start(log_event)
        pair = _Pair(image, adapter, keeper)
        try:
            interleaved(3, pair.admitted, pair.bare)
            trips = _round_trips(pair)
            ours, bare = interleaved(pairs, pair.admitted, pair.bare)
        finally:
            keeper.close()
            pair.close()
            _forget(adapter, keeper)
    adapter.close()
    return [_row(ours, bare, trips)]


def _round_trips(pair: _Pair) -> int:
    """Exchanges with Redis during one execution, counted where they leave."""
    count = 0
    take = RedisServer._take  # noqa: SLF001 - the one place that every exchange passes

    def counted(server: RedisServer) -> object:
        nonlocal count
        count += 1
        return take(server)

    RedisServer._take = counted  # type: ignore[method-assign,assignment]  # noqa: SLF001
    try:
        pair.admitted()
    finally:
        RedisServer._take = take  # type: ignore[method-assign]  # noqa: SLF001
    return count


def _row(ours: list[float], bare: list[float], trips: int) -> Row:
    ratios = sorted(a / b for a, b in zip(ours, bare, strict=True))
    ratio = statistics.median(ratios)
    return Row(
        f"a container under a limit, create to removed; {trips} exchanges with Redis each",
        ratio,
        f"≤ {BAR:.2f}",
        ratio <= BAR,
        f"{statistics.median(ours) * 1000:.0f} ms",
        f"{statistics.median(bare) * 1000:.0f} ms by the SDK alone",
        f"{ratios[len(ratios) // 10]:.2f}-{ratios[-len(ratios) // 10]:.2f} (inner 80 %)",
    )


def _forget(adapter: DockerAdapter, keeper: SlotKeeper) -> None:
    if not isinstance(keeper, PhysicalKeeper):
        return
    client = docker.APIClient(base_url=adapter.endpoint)
    for volume in client.volumes(filters={"label": f"{LABEL_RECORD}={keeper.entitlement.instance}"})["Volumes"] or []:
        client.remove_volume(volume["Name"])
    client.close()
