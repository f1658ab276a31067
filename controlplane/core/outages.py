"""Holding still after an outage (rules A11, Q6): once for each, for a fixed time, whether or not calls come in."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from controlplane.core.sql import one

# Note the sign of life and say whether a hold stands. One statement, so it is exact under concurrency; the row's lock
# is held to the end of the caller's transaction. `sign` null: this very call is the sign (the database answers), and
# the previous one is what may be too old. A sign older than `gap` starts a hold of `length`, unless one was taken for
# that same sign before: silence that goes on is one outage. Without a row (a new database) and without a sign a hold
# is taken too: unknown is no.
# Index: primary key.
NOTE: Final = """
INSERT INTO core_hold AS h (name, sign_at, taken_for, until)
VALUES (%(name)s, coalesce(%(sign)s::timestamptz, statement_timestamp()),
        CASE WHEN %(sign)s::timestamptz < statement_timestamp() - make_interval(secs => %(gap)s)
             THEN %(sign)s::timestamptz END,
        statement_timestamp() + CASE WHEN coalesce(%(sign)s::timestamptz < statement_timestamp()
            - make_interval(secs => %(gap)s), true) THEN make_interval(secs => %(length)s) ELSE interval '0' END)
ON CONFLICT (name) DO UPDATE SET
    sign_at = coalesce(%(sign)s::timestamptz, statement_timestamp()),
    until = CASE WHEN coalesce(%(sign)s::timestamptz, h.sign_at)
                      < statement_timestamp() - make_interval(secs => %(gap)s)
                      AND h.taken_for IS DISTINCT FROM coalesce(%(sign)s::timestamptz, h.sign_at)
                 THEN statement_timestamp() + make_interval(secs => %(length)s) ELSE h.until END,
    taken_for = CASE WHEN coalesce(%(sign)s::timestamptz, h.sign_at)
                          < statement_timestamp() - make_interval(secs => %(gap)s)
                     THEN coalesce(%(sign)s::timestamptz, h.sign_at) ELSE h.taken_for END
RETURNING h.until > statement_timestamp() AS held
"""

# Whether somebody outside the pass may act: the pass is current and holds nothing. 0 rows: it never ran.
# Index: primary key.
READ: Final = """
SELECT until <= statement_timestamp() AND sign_at >= statement_timestamp() - make_interval(secs => %(gap)s) AS clear
FROM core_hold WHERE name = %(name)s
"""


def held(name: str, *, gap: float, length: float, sign: datetime | None = None) -> bool:
    """Called by the pass `name` each time. True: leave everything alone this time."""
    row = one(NOTE, {"name": name, "gap": gap, "length": length, "sign": sign})
    return row is None or bool(row["held"])


def away(name: str, *, gap: float) -> bool:
    """Whether what notes itself under `name` has not done so within `gap`, or is held for since it came back.

    What never noted itself is nothing to wait for.
    """
    row = one(READ, {"name": name, "gap": gap})
    return row is not None and not row["clear"]


def clear(name: str, *, gap: float) -> bool:
    """For others than the pass: whether it looked within `gap` and holds nothing. Unknown is no."""
    row = one(READ, {"name": name, "gap": gap})
    return row is not None and bool(row["clear"])
