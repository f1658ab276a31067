"""How the database is emptied after a test that committed: as Django's `flush` does it, for a fraction of its cost.

`flush` truncates every table, which makes new files for each of them and its indexes (some 250), and then fires
`post_migrate`, which writes the content types and permissions anew. With hundreds of such tests that was a quarter of
the whole run. Here only what holds rows is emptied, and what migrations wrote of types and permissions stays.
"""

from __future__ import annotations

from typing import Any, Final

from django.db import connection
from django.test import TransactionTestCase

KEPT: Final = {"django_migrations", "django_content_type", "auth_permission"}

# The lock first, as TRUNCATE takes it: it waits for a transaction that a driver's thread still has open, whose rows
# would otherwise come after the emptying. Truncating comes before deleting, because a table with checks that wait for
# the commit cannot be truncated. Truncated are large tables and the append-only one, which refuses to delete.
EMPTY: Final = """
DO $$
DECLARE
    known regclass;
    used boolean;
    small regclass[] := '{}';
BEGIN
    FOREACH known IN ARRAY ARRAY[%(tables)s]::regclass[] LOOP
        EXECUTE format('LOCK TABLE %%s IN ACCESS EXCLUSIVE MODE', known);
        EXECUTE format('SELECT EXISTS (SELECT FROM %%s)', known) INTO used;
        IF used AND (known = 'core_auditentry'::regclass OR pg_relation_size(known) > 262144) THEN
            EXECUTE format('TRUNCATE %%s CASCADE', known);
        ELSIF used THEN
            small := small || known;
        END IF;
    END LOOP;
    FOREACH known IN ARRAY small LOOP
        EXECUTE format('DELETE FROM %%s', known);
    END LOOP;
END $$
"""


def empty_tables() -> None:
    """Delete every row that tests may have written."""
    with connection.cursor() as cursor:
        tables = sorted(set(connection.introspection.table_names(cursor)) - KEPT)
        cursor.execute(EMPTY % {"tables": ", ".join(f"'{table}'" for table in tables)})


def install() -> None:
    """Make Django empty the database in this way."""

    def teardown(self: Any) -> None:
        empty_tables()

    TransactionTestCase._fixture_teardown = teardown  # type: ignore[method-assign]
