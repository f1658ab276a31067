"""List filters whose choices cost a handful of index probes, however long the table is."""

from __future__ import annotations

from typing import Any

from django.contrib.admin import ModelAdmin, SimpleListFilter
from django.db.models import QuerySet
from django.http import HttpRequest

from controlplane.core.sql import rows

MAX_CHOICES = 100

# The distinct values of an indexed column, one index probe for each: a DISTINCT would read the whole log.
LOOSE_SCAN = """
WITH RECURSIVE found (value, n) AS (
    (SELECT {column}, 1 FROM {table} ORDER BY {column} LIMIT 1)
    UNION ALL
    SELECT (SELECT {column} FROM {table} WHERE {column} > found.value ORDER BY {column} LIMIT 1), found.n + 1
    FROM found WHERE found.value IS NOT NULL AND found.n < %(limit)s
)
SELECT value FROM found WHERE value IS NOT NULL ORDER BY value
"""


class IndexedValuesFilter(SimpleListFilter):
    """Base of filters over an indexed text column. Subclasses set `parameter_name` (the column) and `title`."""

    column = ""

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[tuple[str, str]]:
        """The values that occur."""
        statement = LOOSE_SCAN.format(column=self.column, table=model_admin.model._meta.db_table)
        return [(row["value"], row["value"]) for row in rows(statement, {"limit": MAX_CHOICES})]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Exactly the chosen one."""
        value = self.value()
        return queryset.filter(**{self.column: value}) if value else queryset


class FixedValuesFilter(SimpleListFilter):
    """Base of filters over a column whose values are known: none is looked for."""

    values: tuple[str, ...] = ()

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[tuple[str, str]]:
        """The known values."""
        return [(value, value.replace("_", " ")) for value in self.values]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Exactly the chosen one."""
        value = self.value()
        return queryset.filter(**{self.parameter_name or "": value}) if value else queryset


def fixed_values(name: str, *values: str) -> type[FixedValuesFilter]:
    """A filter over a column with known values."""
    attributes = {"parameter_name": name, "title": name.replace("_", " "), "values": values}
    return type(f"{name.title()}Filter", (FixedValuesFilter,), attributes)


def indexed_values(name: str, title: str = "") -> type[IndexedValuesFilter]:
    """A filter over one indexed text column."""
    attributes = {"column": name, "parameter_name": name, "title": title or name.replace("_", " ")}
    return type(f"{name.title()}Filter", (IndexedValuesFilter,), attributes)
