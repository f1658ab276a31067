"""Path pieces that can only be what the database can hold."""

from __future__ import annotations

from django.urls import register_converter


class IdConverter:
    """A row's id: up to 18 digits, so that no number overflows a bigint."""

    regex = r"[0-9]{1,18}"

    def to_python(self, value: str) -> int:
        """The number."""
        return int(value)

    def to_url(self, value: int) -> str:
        """The digits."""
        return str(value)


class PermitIdConverter:
    """An outside system's own permit id."""

    regex = r"[A-Za-z0-9._:-]{1,200}"

    def to_python(self, value: str) -> str:
        """Itself."""
        return value

    def to_url(self, value: str) -> str:
        """Itself."""
        return value


register_converter(IdConverter, "id")
register_converter(PermitIdConverter, "permit")
