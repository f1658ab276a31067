"""What a kept file may be called: the same rule where it is collected, where it is stored and where it is fetched."""

from __future__ import annotations

MOST_CHARACTERS = 500
MOST_BYTES_OF_A_PART = 255


def wrong_name(name: str) -> str:
    """Why not, as a sentence's end; '' when it is fine. Safe to show: what it quotes is escaped."""
    if not 1 <= len(name) <= MOST_CHARACTERS:
        return f"has not 1 to {MOST_CHARACTERS} characters"
    # Also says no to halves of surrogate pairs (bytes that are no UTF-8), line ends and marks that turn text around.
    if not name.isprintable() or "\\" in name:
        return "has characters that no name may have"
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts):
        return "is not a path of plain names below the working directory"
    if any(len(part.encode()) > MOST_BYTES_OF_A_PART for part in parts):
        return f"has a part of more than {MOST_BYTES_OF_A_PART} bytes"
    return ""
