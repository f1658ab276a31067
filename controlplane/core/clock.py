"""The one clock that judges ownership: the database's (rule G5)."""

from __future__ import annotations

from datetime import datetime

from controlplane.core.errors import InvalidInput
from controlplane.core.sql import one

LAST_YEAR = 8999


def database_now() -> datetime:
    """The database's time of this statement."""
    row = one("SELECT statement_timestamp() AS now")
    assert row is not None  # noqa: S101 - a SELECT without FROM has one row
    moment: datetime = row["now"]
    return moment


def check_to_come(moment: datetime, what: str) -> None:
    """Raises InvalidInput for a time that has passed, and for one so late that no row with it could be read again.

    The database keeps years that Python cannot make a date of: one such row would fail every list that it is on.
    """
    if moment.year > LAST_YEAR:
        raise InvalidInput(f"{what} would last beyond the year {LAST_YEAR}: give an earlier end, or none.")
    if moment <= database_now():
        raise InvalidInput(f"{what} would end in the past: give a time to come.")
