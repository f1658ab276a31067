"""Fixtures of the recovery tests."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from recovery.models import Replica
from tests import ledger
from tests.fencing.conftest import local_image

__all__ = ["local_image", "witness"]


@pytest.fixture
def witness(transactional_db: None) -> Replica:
    """A replica that has beaten without a gap for an hour: the database was there, and who is silent is not held.

    The database of the tests may have been started a moment ago, which by itself is a reason to hold still.
    """
    made = ledger.make_replica(name="witness", machine="elsewhere")
    Replica.objects.filter(pk=made.pk).update(started_at=timezone.now() - timedelta(hours=1))
    return made
