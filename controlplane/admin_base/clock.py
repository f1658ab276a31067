"""Ages and countdowns by the database's clock, as annotations: a browser only counts on from them (rule G5)."""

from __future__ import annotations

from django.db.models import F, FloatField, Func


class SecondsSince(Func):
    """Seconds from a column's time to this statement's."""

    template = "extract(epoch FROM statement_timestamp() - %(expressions)s)::float8"
    output_field = FloatField()

    def __init__(self, field: str) -> None:
        super().__init__(F(field))


class SecondsToLapse(Func):
    """Seconds until a lease lapses that was renewed at one column's time for another column's length."""

    arity = 2
    arg_joiner = " - statement_timestamp()) + "
    template = "(extract(epoch FROM %(expressions)s)::float8"
    output_field = FloatField()

    def __init__(self, renewed: str, length: str) -> None:
        super().__init__(F(renewed), F(length))
