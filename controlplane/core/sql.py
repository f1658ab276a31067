"""How named statements reach the database: one function for rows, one for a count.

Statements live in each app's `sql.py`; here is only their transport. Dictionaries instead of model instances keep the
hot paths free of the object mapper's cost (about 0.3 ms a statement).

Parameters are bound by the server, so the text of a statement never changes and the driver prepares it after some
executions: planning a claim takes longer than executing it. Behind a transaction pooler nothing is prepared
(`prepare_threshold`, controlplane.core.environment).
"""

from __future__ import annotations

import select
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from django.db import DEFAULT_DB_ALIAS, InterfaceError, InternalError, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.postgresql.base import ServerBindingCursor
from django.db.backends.utils import CursorWrapper
from psycopg.rows import dict_row

Row = dict[str, Any]

STOOD_STILL = frozenset({"25P03", "25P04"})
"""The server ended a session that stood idle in its transaction, or whose transaction took too long."""

PROOF_SECONDS = 5.0
"""For so long after its last statement a session whose socket is silent is taken to live."""


@dataclass(slots=True)
class _Kept:
    """A thread's cursor, used again by every statement: making one costs as much as sending one."""

    # Any: the stubs of Django know nothing of psycopg's cursors.
    cursor: Any
    used_at: float


_kept: WeakKeyDictionary[BaseDatabaseWrapper, _Kept] = WeakKeyDictionary()
_new_cursor: Any = ServerBindingCursor


def _cursor() -> CursorWrapper:
    """A cursor of Django's connection with its checks, its errors and its query log, but bound by the server."""
    # Looked up once: `django.db.connection` finds the thread's connection anew at every attribute.
    # Any: the stubs do not know whether its health was checked.
    database: Any = connections[DEFAULT_DB_ALIAS]
    kept = _kept.get(database)
    if kept is not None and not database.health_check_done and _lives(database, kept):
        database.health_check_done = True
    # Once a request, as Django's own cursors do: a connection that died since the last one is replaced, not used.
    database.close_if_health_check_failed()
    if database.connection is None:
        database.ensure_connection()
    if kept is None or kept.cursor.connection is not database.connection:
        kept = _kept[database] = _Kept(_new_cursor(database.connection, row_factory=dict_row), 0.0)
    kept.used_at = monotonic()
    cursor = kept.cursor
    made: CursorWrapper = (
        database.make_debug_cursor(cursor) if database.queries_logged else database.make_cursor(cursor)
    )
    return made


def _lives(database: BaseDatabaseWrapper, kept: _Kept) -> bool:
    """Whether the health check can be spared, which is a round trip to the server.

    A server that ends, or ends a session, closes its socket, and often says so before: something is there to be read,
    and then the check is made. Only one that vanished without a word is silent, hence the bound of time.
    """
    session = database.connection
    if session is None or kept.cursor.connection is not session or monotonic() - kept.used_at > PROOF_SECONDS:
        return False
    poll = select.poll()
    try:
        poll.register(session.pgconn.socket, select.POLLIN)
    except psycopg.OperationalError:
        return False
    return not poll.poll(0)


def rows(statement: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
    """Execute and return all rows by column name."""
    cursor = _cursor()
    cursor.execute(statement, parameters)
    found: list[Row] = cursor.fetchall()
    return found


def one(statement: str, parameters: Mapping[str, Any] | None = None) -> Row | None:
    """Execute and return the single row, or None. More than one is a programming error."""
    found = rows(statement, parameters)
    if len(found) > 1:
        raise AssertionError(f"expected at most one row, got {len(found)}")
    return found[0] if found else None


def execute(statement: str, parameters: Mapping[str, Any] | None = None) -> int:
    """Execute and return the number of affected rows."""
    cursor = _cursor()
    cursor.execute(statement, parameters)
    return int(cursor.rowcount)


def is_outage(error: Exception) -> bool:
    """Whether the session is gone, perhaps the server with it: nothing is known of the effect, another may be tried.

    Also two kinds that are filed under "internal": what the server says to a session that stood still, and what the
    driver says, without a code, to an answer that broke off half-way, as a pooler's does whose server went away.
    """
    if isinstance(error, InternalError):
        state = getattr(error.__cause__, "sqlstate", None)
        return state is None or state in STOOD_STILL
    return isinstance(error, (OperationalError, InterfaceError))
