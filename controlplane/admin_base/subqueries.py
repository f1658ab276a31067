"""Counts beside each row of a list, in the list's own statement: evaluated for the page's rows only, and bounded."""

from __future__ import annotations

from typing import Any

from django.db.models import IntegerField, QuerySet, Subquery

COUNT_CAP = 1000


class CappedCount(Subquery):
    """How many rows a correlated queryset has, counted up to `COUNT_CAP` + 1."""

    template = "(SELECT count(*) FROM (%(subquery)s) AS capped)"
    output_field = IntegerField()

    def __init__(self, queryset: QuerySet[Any]) -> None:
        super().__init__(queryset.order_by().values("pk")[: COUNT_CAP + 1])


class WeightSum(Subquery):
    """The summed weight of a correlated queryset's rows."""

    template = "(SELECT coalesce(sum(weight), 0)::int FROM (%(subquery)s) AS held)"
    output_field = IntegerField()

    def __init__(self, queryset: QuerySet[Any]) -> None:
        super().__init__(queryset.order_by().values("weight"))


def capped(count: int) -> str:
    """The count as shown: exact, or "1,000+"."""
    return f"{COUNT_CAP:,}+" if count > COUNT_CAP else f"{count:,}"
