"""What a specification names and another app keeps, such as secrets: asked at submit, and again before admission.

The apps above register here, in `ready()`, how they look. A run that names what is not there is refused when it is
submitted, and set aside with the reason when it went missing since (rule A25), before any permit is taken for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from admission.spec import RunSpec

Named = tuple[int, RunSpec]
"""Whose (the tenant's id), and what."""

Check = Callable[[Sequence[Named]], list[str]]
"""For each, in order: '' or a sentence saying what is missing. One statement for all; none where nothing is named."""

_checks: dict[str, Check] = {}


def register_reference_check(field: str, check: Check) -> None:
    """Called once for each field of the specification when its app is ready."""
    _checks[field] = check


def missing_references(items: Sequence[Named]) -> list[tuple[str, str]]:
    """For each, in order: the field and the sentence of the first thing missing, or two empty texts."""
    found = [("", "")] * len(items)
    for field, check in _checks.items():
        for position, sentence in enumerate(check(items)):
            if sentence and not found[position][1]:
                found[position] = (field, sentence)
    return found
