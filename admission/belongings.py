"""What other apps keep of a tenant, for its deletion, which may not import those who keep it.

The apps above register here, in `ready()`, what must not go unseen when a tenant goes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MOST_NAMED = 20
"""Of what stands in the way of a deletion, so many are named."""


@dataclass(frozen=True, slots=True)
class Belonging:
    """Rows of one model that protect their tenant."""

    model: Any
    title: str
    """In the plural, as in "2 runners of its own"."""
    hint: str
    """What to do about those in use."""
    in_use: Callable[[int], list[str]]
    """Names of the tenant's that still work; a deletion that does not drain is refused by them."""
    remove: Callable[[int], bool]
    """Ends and deletes all of the tenant's; false: there were none. Called once nothing of the tenant's is open, in no
    transaction and with no lock held: it may lock what comes before a tenant."""


_belongings: list[Belonging] = []


def register_belonging(belonging: Belonging) -> None:
    """Called once per model when its app is ready."""
    _belongings.append(belonging)


def read_belongings() -> list[Belonging]:
    """All that is registered."""
    return list(_belongings)
