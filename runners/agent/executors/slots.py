"""Where an executor asks before a container may exist (rules P2, P7, P8): a keeper of places, one place a container.

The executor knows no more than this. Unrestricted, there is always a place, and releasing it is the removal itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from runners.agent.backoff import jittered
from runners.agent.clock import now
from runners.agent.executors.base import ExecutorError, MayStart

if TYPE_CHECKING:
    from runners.agent.events import OnEvent

WAIT_SECONDS = 45.0
"""Below the start deadline of 60 s: who waits here gives the run back before it is taken away."""
POLL_SECONDS = 0.25

Remove = Callable[[str | None], None]
"""Removes what was made for a place, and the container of the given id too; confirms each; raises `ExecutorError`."""


class NoPlace(ExecutorError):
    """No place became free in time, or nobody can say whether there is one. Nothing was made."""

    reason = "no_slot"


class PlaceLost(ExecutorError):
    """The place is not ours any more: what was made must not be started, and says nothing about the run."""

    reason = "lost"


class Place(Protocol):
    """The right to one container, from before its creation to its confirmed removal."""

    @property
    def lost(self) -> str:
        """Why its container was or is being removed by force; '' while the place is held."""

    @property
    def displaced(self) -> bool:
        """Another process has taken the container over: it is not ours to stop or remove."""

    def ask(self) -> None:
        """Before the create and before the start. Raises `PlaceLost`."""

    def guard(self, abort: Callable[[], None]) -> None:
        """`abort` removes by force what was made, from another thread, when the place is lost; or only stops waiting
        for it when it was `displaced`."""

    def register(self, container: str) -> None:
        """The container exists; only after this may it be started. Raises `ExecutorError`: never start it."""

    def held(self) -> bool:
        """Asks whether it is still ours; True also when nobody answers. For a container that was killed."""

    def drop(self) -> None:
        """Whether anything was made for it is not known: let it run out, and be recovered by the pass."""

    def release(self, remove: Remove) -> None:
        """Remove and free. Raises `ExecutorError` when the removal is not confirmed; repeatable."""


class SlotKeeper(Protocol):
    """Hands out places. One object per process, used by many threads."""

    def start(self, on_event: OnEvent) -> None:
        """Begin with what runs beside: renewals, the periodic pass. Raises `ExecutorError` where it may not work."""

    def close(self) -> None:
        """No further pass or renewal. Places still held run out."""

    def free(self) -> int | None:
        """Places that are free now; None: unlimited. 0 also when it cannot be known."""

    def ask(self, run: int, attempt: int) -> Mapping[str, str]:
        """Labels that name a place, none of which is taken yet. For one container; never used again."""

    def reserve(self, labels: Mapping[str, str]) -> bool:
        """One try for the place that these name; again with the same until there is one. False: there is none now.

        Raises `NoPlace`: not to be known, or refused.
        """

    def cancel(self, labels: Mapping[str, str]) -> None:
        """Give back what nothing was made for. Returns at once; without effect once it was entered."""

    def enter(self, labels: Mapping[str, str]) -> Place | None:
        """The reserved place that these labels name, once; None: they name none, so one must be reserved first."""

    def adopt(self, token: str, container: str) -> Place:
        """Take over the place of a container whose process is proven gone (rule R10), before looking at it.

        Raises `PlaceLost`: expired, fenced, or not to be known. Its container is then removed, not adopted.
        """


class _AnyPlace:
    """Unrestricted: the right that nobody counts. One for all."""

    __slots__ = ()

    lost: Final = ""
    displaced: Final = False

    def ask(self) -> None:
        """Always."""

    def guard(self, abort: Callable[[], None]) -> None:
        """Never lost."""

    def register(self, container: str) -> None:
        """Nobody counts it."""

    def held(self) -> bool:
        """Always ours."""
        return True

    def drop(self) -> None:
        """Nobody counts it."""

    def release(self, remove: Remove) -> None:
        """The removal is all there is."""
        remove(None)


NO_PLACE: Final = _AnyPlace()


class Unrestricted:
    """Places without end (rule P3: self-hosted, no limit set)."""

    def start(self, on_event: OnEvent) -> None:
        """Nothing runs beside."""

    def close(self) -> None:
        """Nothing to end."""

    def free(self) -> int | None:
        """Unlimited."""
        return None

    def ask(self, run: int, attempt: int) -> Mapping[str, str]:
        """Named by nothing: the executor's own labels do."""
        return {}

    def reserve(self, labels: Mapping[str, str]) -> bool:
        """Always one."""
        return True

    def cancel(self, labels: Mapping[str, str]) -> None:
        """Nothing was taken."""

    def enter(self, labels: Mapping[str, str]) -> Place | None:
        """Always one."""
        return NO_PLACE

    def adopt(self, token: str, container: str) -> Place:
        """Nobody else counts it either."""
        return NO_PLACE


UNRESTRICTED: Final = Unrestricted()


def wait_for_place(
    slots: SlotKeeper, run: int, attempt: int, may_start: MayStart, seconds: float = WAIT_SECONDS
) -> Mapping[str, str]:
    """For callers that reserved none: try until there is one. Raises `NoPlace`, or what `may_start` raises."""
    until, pause = now() + seconds, threading.Event()
    labels = slots.ask(run, attempt)
    try:
        while not slots.reserve(labels):
            if now() >= until:
                break
            pause.wait(jittered(POLL_SECONDS))
            may_start()
        else:
            return labels
    except BaseException:
        slots.cancel(labels)
        raise
    slots.cancel(labels)
    raise NoPlace(f"no place for a container became free within {seconds:g} s; the run goes back")
