"""The one clock that judges ownership: the database's (rule G5)."""

from __future__ import annotations

from datetime import datetime

from controlplane.core.sql import one


def database_now() -> datetime:
    """The database's time of this statement."""
    row = one("SELECT statement_timestamp() AS now")
    assert row is not None  # noqa: S101 - a SELECT without FROM has one row
    moment: datetime = row["now"]
    return moment
