"""How named statements reach the database: one function for rows, one for a count.

Statements live in each app's `sql.py`; here is only their transport. Dictionaries instead of model instances keep the
hot paths free of the object mapper's cost (about 0.3 ms a statement).

Parameters are bound by the server, so the text of a statement never changes and the driver prepares it after some
executions: planning a claim takes longer than executing it. Behind a transaction pooler nothing is prepared
(`prepare_threshold`, controlplane.core.environment).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import connection
from django.db.backends.postgresql.base import ServerBindingCursor
from django.db.backends.utils import CursorWrapper

Row = dict[str, Any]


def _cursor() -> CursorWrapper:
    """A cursor of Django's connection with its checks, its errors and its query log, but bound by the server."""
    connection.ensure_connection()
    cursor: Any = ServerBindingCursor(connection.connection)  # type: ignore[call-arg] # the stub omits psycopg's half
    return connection.make_debug_cursor(cursor) if connection.queries_logged else connection.make_cursor(cursor)


def rows(statement: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
    """Execute and return all rows by column name."""
    with _cursor() as cursor:
        cursor.execute(statement, parameters)
        names = [column.name for column in cursor.description or ()]
        return [dict(zip(names, values, strict=True)) for values in cursor.fetchall()]


def one(statement: str, parameters: Mapping[str, Any] | None = None) -> Row | None:
    """Execute and return the single row, or None. More than one is a programming error."""
    found = rows(statement, parameters)
    if len(found) > 1:
        raise AssertionError(f"expected at most one row, got {len(found)}")
    return found[0] if found else None


def execute(statement: str, parameters: Mapping[str, Any] | None = None) -> int:
    """Execute and return the number of affected rows."""
    with _cursor() as cursor:
        cursor.execute(statement, parameters)
        return int(cursor.rowcount)
