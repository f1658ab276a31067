"""Fixtures of the leadership tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from tests.leadership.counting.steps import TABLE
from tests.leadership.replicas import Fleet
from tests.leadership.webhook import Webhook
from tests.leadership.world import World, small_environment
from tests.ledger import application_url


@pytest.fixture
def counting(transactional_db: None) -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute(TABLE)
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE counted")


@pytest.fixture
def make_world(database_url: str, counting: None, tmp_path: Path) -> Iterator[Callable[..., World]]:
    """`make_world(lease=1.5, COUNT_SECONDS="1")`: processes on this worker's test database."""
    made: list[World] = []

    def make(**environment: Any) -> World:
        made.append(World(database_url, tmp_path, small_environment(**environment), application_url()))
        return made[-1]

    yield make
    for world in made:
        world.end()


@pytest.fixture
def make_fleet(database_url: str, counting: None, tmp_path: Path) -> Iterator[Callable[..., Fleet]]:
    """The same with real replica processes."""
    made: list[Fleet] = []

    def make(**environment: Any) -> Fleet:
        made.append(Fleet(database_url, tmp_path, small_environment(**environment), application_url()))
        return made[-1]

    yield make
    for fleet in made:
        fleet.end()


@pytest.fixture
def quick(settings: Any) -> Any:
    """Short lease and transactions, in the test's own process."""
    values = {
        "leader_lease_seconds": 0.9,
        "leader_renew_seconds": 0.3,
        "leader_tick_seconds": 0.05,
        "sweep_transaction_seconds": 5.0,
    }
    settings.CONTROLPLANE = {**settings.CONTROLPLANE, **values}
    return values


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    """Somebody who is told by POST."""
    receiver = Webhook()
    yield receiver
    receiver.close()
