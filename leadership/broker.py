"""django-q2's queue table, judged by the database's clock.

The broker that comes with it writes and compares the local clock of each process. A leader whose clock is an hour
ahead would enqueue sweeps that no cluster takes for an hour (rule G5: a shifted wall clock changes nothing).
"""

from __future__ import annotations

import logging
import time
from typing import Any, Final

from django.db import DatabaseError, InterfaceError, connection
from django_q.brokers.orm import ORM
from django_q.conf import Conf

from controlplane.core.sql import is_outage, one, rows

log = logging.getLogger(__name__)

ENQUEUE: Final = """
INSERT INTO django_q_ormq (key, payload, lock) VALUES (%(key)s, %(payload)s, statement_timestamp()) RETURNING id
"""
# Handed out once: the row is invisible to others until `retry` passed. Two clusters never wait for each other.
DEQUEUE: Final = """
WITH free AS (
    SELECT id FROM django_q_ormq WHERE key = %(key)s AND lock < statement_timestamp()
    ORDER BY id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
UPDATE django_q_ormq q SET lock = statement_timestamp() + make_interval(secs => %(retry)s)
FROM free f WHERE q.id = f.id
RETURNING q.id, q.payload
"""
SIZES: Final = """
SELECT count(*) FILTER (WHERE lock < statement_timestamp()) AS queued,
       count(*) FILTER (WHERE lock >= statement_timestamp()) AS locked
FROM django_q_ormq WHERE key = %(key)s
"""


class DatabaseClockBroker(ORM):  # type: ignore[misc]
    """Named by `Q_CLUSTER["broker_class"]`."""

    def _key(self) -> str:
        return self.list_key or str(Conf.CLUSTER_NAME)

    def enqueue(self, task: Any) -> Any:
        """In the caller's transaction, if there is one."""
        row = one(ENQUEUE, {"key": self._key(), "payload": task})
        return row["id"] if row else None

    def dequeue(self) -> list[tuple[int, str]] | None:
        """The next tasks; None after a pause if there are none."""
        self.get_connection()  # drops a connection that a restart of the database broke
        try:
            found = rows(DEQUEUE, {"key": self._key(), "limit": Conf.BULK, "retry": float(Conf.RETRY)})
        except (DatabaseError, InterfaceError) as error:
            if not is_outage(error):
                raise
            # Raised on, django-q would stop its pusher for ten seconds; sweeps are due every five.
            log.warning("queue.unreachable", extra={"error": str(error)})
            connection.close()
            time.sleep(1)
            return None
        if not found:
            time.sleep(Conf.POLL)
            return None
        return [(row["id"], row["payload"]) for row in found]

    def queue_size(self) -> int:
        """Waiting."""
        return self._size("queued")

    def lock_size(self) -> int:
        """Handed out and not acknowledged."""
        return self._size("locked")

    def _size(self, which: str) -> int:
        row = one(SIZES, {"key": self._key()})
        return int(row[which]) if row else 0
