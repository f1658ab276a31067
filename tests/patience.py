"""How long a thread stood still: neither computing nor waiting for a processor, whatever the load of the machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from django.db import connection
from django.test.utils import CaptureQueriesContext

SCHEDSTAT = Path("/proc/thread-self/schedstat")


def _busy() -> float:
    """Seconds on a processor, and in the queue for one, of the calling thread."""
    computed, queued, _ = map(int, SCHEDSTAT.read_text().split())
    return (computed + queued) / 1e9


@contextmanager
def standing_still() -> Iterator[Callable[[], float]]:
    """Seconds for which the calling thread waited for others than the database since here; the queries count apart."""
    with CaptureQueriesContext(connection) as queries:
        began, busy = time.monotonic(), _busy()

        def waited() -> float:
            asked = sum(float(query["time"]) for query in queries.captured_queries)
            return time.monotonic() - began - (_busy() - busy) - asked

        yield waited
