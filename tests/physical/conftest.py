from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.physical.server import OwnRedis
from tests.physical.world import World


@pytest.fixture(scope="module", params=["redis", "valkey"])
def product(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def server(product: str) -> Iterator[OwnRedis]:
    """A durable server of this module's own, of both kinds; each test has an instance of its own in it."""
    place = Path(tempfile.mkdtemp(prefix="wharfinger-slots."))
    own = OwnRedis(product, place)
    try:
        own.start()
        yield own
    finally:
        own.stop()
        shutil.rmtree(place)


@pytest.fixture
def start_server(product: str, tmp_path: Path) -> Iterator[Callable[..., OwnRedis]]:
    """Start a server with options of its own: `start_server(appendonly="no")`."""
    started: list[OwnRedis] = []

    def start(**options: str) -> OwnRedis:
        started.append(OwnRedis(product, tmp_path / f"server-{len(started)}", **options))
        started[-1].start()
        return started[-1]

    yield start
    for own in started:
        own.stop()


@pytest.fixture
def make_world(server: OwnRedis, tmp_path: Path) -> Iterator[Callable[..., World]]:
    """`make_world(limit=2, generation=0)`: a new instance."""
    made: list[World] = []

    def make(own: OwnRedis | None = None, **options: int) -> World:
        made.append(World(own or server, tmp_path / f"record-{len(made)}", **options))
        return made[-1]

    yield make
    for world in made:
        world.close()


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world()
