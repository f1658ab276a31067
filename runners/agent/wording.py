"""Texts that the database and a JSON document can hold: a result must never be refused for its wording."""

from __future__ import annotations

MAX_DETAIL = 4000
MAX_REASON = 60


def storable(text: str, most: int) -> str:
    """Cut, without U+0000 and without halves of surrogate pairs."""
    return text[:most].replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
