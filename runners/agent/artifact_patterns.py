"""Patterns among the paths to keep: `*`, `?`, `[…]` within one name, `**` for directories in any depth.

As in a shell, a name that begins with a dot is matched only by a part that begins with one; a directory that matches
is kept with all that is in it. Names are a hostile command's own: matching takes steps in proportion to the pattern's
length, whatever they are.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Collection

from admission.spec import PATTERN_CHARACTERS

State = frozenset[int]
"""Which parts of the pattern may come next; the number of parts: it is matched."""


def is_pattern(path: str) -> bool:
    """Whether this asks for all that match, rather than for one file or directory."""
    return not PATTERN_CHARACTERS.isdisjoint(path)


class Pattern:
    """One of them, read name by name on the way down."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._parts = text.split("/")
        self._fits = [_fitting(part) for part in self._parts]
        literal = next(at for at, part in enumerate(self._parts) if is_pattern(part))
        self.prefix = "/".join(self._parts[:literal])
        """The directory that all of it is below; '' for the working directory."""
        self.start = self._closed({0})

    def step(self, state: State, name: str) -> State:
        """What may follow this name; nothing: no path that begins so matches."""
        hidden = name.startswith(".")
        found = set()
        for at in state:
            if at == len(self._parts):
                continue
            if self._parts[at] == "**":
                if not hidden:
                    found.add(at)
            elif self._fits[at](name) and (not hidden or self._parts[at].startswith(".")):
                found.add(at + 1)
        return self._closed(found)

    def is_matched(self, state: State) -> bool:
        """Whether what was read so far matches as a whole."""
        return len(self._parts) in state

    def matches(self, path: str) -> bool:
        """Whether it matches, or a directory that it is in."""
        state = self.start
        for name in path.split("/"):
            state = self.step(state, name)
            if self.is_matched(state):
                return True
        return False

    def _closed(self, state: Collection[int]) -> State:
        """`**` may stand for no directory at all."""
        found = set(state)
        for at, part in enumerate(self._parts):
            if at in found and part == "**":
                found.add(at + 1)
        return frozenset(found)


def _fitting(part: str) -> Callable[[str], object]:
    # Its stars do not give back what they took (`fnmatch` translates them so), so no name makes this slow.
    return re.compile(fnmatch.translate(part)).match
