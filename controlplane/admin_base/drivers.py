"""Signs of life of drivers, for apps that may not import those who keep them.

Permits and runs name a driver by kind and id only. The apps above admission register here how to look one up; the
operator who forces a release sees whether its holder still beats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from django.urls import NoReverseMatch, reverse

Health = Literal["live", "draining", "late", "silent", "dead"]
DriverKey = tuple[str, int]

PAGES = {"replica": "admin:recovery_replica_change", "runner": "admin:runners_runner_change"}


@dataclass(frozen=True, slots=True)
class DriverSign:
    """When a driver was last heard, and what that means."""

    name: str
    health: Health
    heard_seconds_ago: float | None

    def sentence(self) -> str:
        """For the page on which somebody is about to take its work away."""
        if self.health == "dead":
            return f"{self.name} was declared dead."
        if self.heard_seconds_ago is None:
            return f"{self.name} was never heard."
        return f"{self.name} is {self.health}: last heard {self.heard_seconds_ago:.0f} s ago."


def judge_health(heard: float | None, *, beat: float, silent: float, draining: bool) -> Health:
    """Silence first: a drained driver that is not heard any more is silent. Two beats may be late before it shows."""
    if heard is None or heard > silent:
        return "silent"
    if heard > 2.5 * beat:
        return "late"
    return "draining" if draining else "live"


Source = Callable[[Iterable[int]], Mapping[int, DriverSign]]
_sources: dict[str, Source] = {}


def register_driver_source(kind: str, source: Source) -> None:
    """Called once per kind when the app's admin is loaded."""
    _sources[kind] = source


def driver_signs(drivers: Iterable[DriverKey]) -> dict[DriverKey, DriverSign]:
    """One look-up per kind. A driver that is missing from the answer has no row any more."""
    wanted: dict[str, set[int]] = {}
    for kind, pk in drivers:
        wanted.setdefault(kind, set()).add(pk)
    return {
        (kind, pk): sign
        for kind, ids in wanted.items()
        if kind in _sources
        for pk, sign in _sources[kind](ids).items()
    }


def driver_page(kind: str, pk: int | None) -> str:
    """The address of a driver's page, or "" where there is none."""
    if kind not in PAGES or pk is None:
        return ""
    try:
        return reverse(PAGES[kind], args=[pk])
    except NoReverseMatch:
        return ""
