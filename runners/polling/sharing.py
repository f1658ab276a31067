"""Which of those who wait are woken, for which runs. No database, no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from admission.services.judging import Profile

W = TypeVar("W")


@dataclass(slots=True)
class Wish(Generic[W]):
    """One waiter: what suits it, and how many it can start."""

    waiter: W
    profile: Profile
    slots: int


def share(
    wishes: Iterable[Wish[W]], suitable: Mapping[Profile, list[int]], spoken_for: set[int]
) -> dict[W, list[int]]:
    """Give each run to one waiter at most: who waited longest first, one each before anybody gets a second.

    `wishes` in the order of waiting. A waiter that no run suits takes no turn, so it swallows nobody's.
    """
    left = {profile: deque(runs) for profile, runs in suitable.items() if runs}
    taken = set(spoken_for)
    given: dict[W, list[int]] = {}
    turn = deque(wish for wish in wishes if wish.profile in left)
    while turn and left:
        wish = turn.popleft()
        runs = left.get(wish.profile)
        if runs is None:
            continue
        while runs and runs[0] in taken:
            runs.popleft()
        if not runs:
            del left[wish.profile]
            continue
        run = runs.popleft()
        taken.add(run)
        mine = given.setdefault(wish.waiter, [])
        mine.append(run)
        if len(mine) < wish.slots:
            turn.append(wish)
    return given
