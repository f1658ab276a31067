"""Files out of a directory that a run wrote, without following any link (the process executor's scratch tree).

Every step goes through the directory opened before it, so a name that is swapped for a link is refused, not followed.
"""

from __future__ import annotations

import itertools
import os
import stat
from typing import TYPE_CHECKING

from runners.agent.artifact_patterns import Pattern, is_pattern

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from runners.agent.artifact_patterns import State
    from runners.agent.artifacts import Collected

MOST_ENTRIES = 200_000
MOST_DEPTH = 64
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Not blocking: opening a FIFO would wait for a writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def collect_from_tree(top: Path, wanted: Sequence[str], collection: Collected) -> None:
    """Take these files and directories below `top`. What cannot be had is noted."""
    walk = _Walk(collection)
    for path in wanted:
        if is_pattern(path):
            walk.match(top, Pattern(path))
            continue
        *parents, last = path.split("/")
        opened: list[int] = []
        try:
            opened.append(os.open(top, _DIRECTORY))
            for parent in parents:
                opened.append(os.open(parent, _DIRECTORY, dir_fd=opened[-1]))
            walk.take(opened[-1], last, path, depth=0)
        except FileNotFoundError:
            collection.refuse(path, "the run left no such file or directory")
        except OSError as error:
            # Also a link in place of a directory: ELOOP or ENOTDIR.
            collection.refuse(path, f"it could not be read: {error.strerror}")
        finally:
            for handle in opened:
                os.close(handle)


class _Walk:
    """Depth first, bounded in entries and depth."""

    def __init__(self, collection: Collected) -> None:
        self._collection = collection
        self._entries = 0

    def match(self, top: Path, pattern: Pattern) -> None:
        """Everything below `top` that a pattern names."""
        handle = os.open(top, _DIRECTORY)
        try:
            found = self._matching(handle, "", pattern, pattern.start, depth=0)
        finally:
            os.close(handle)
        if not found:
            self._collection.refuse(pattern.text, "nothing that the run left matches it")

    def _matching(self, handle: int, above: str, pattern: Pattern, state: State, *, depth: int) -> bool:
        found = False
        # One more than may be looked at: what lies beyond is to be noticed, not passed over without a word.
        with os.scandir(handle) as listed:
            names = sorted(one.name for one in itertools.islice(listed, MOST_ENTRIES + 1))
        for name in names:
            path, after = f"{above}{name}", pattern.step(state, name)
            if not self._may_look(path, depth):
                break
            try:
                if pattern.is_matched(after):
                    found = True
                    self.take(handle, name, path, depth=depth)
                elif after:
                    found = self._deeper(handle, name, path, pattern, after, depth=depth + 1) or found
            except OSError as error:
                self._collection.refuse(path, f"it could not be read: {error.strerror}")
        return found

    def _deeper(self, handle: int, name: str, path: str, pattern: Pattern, state: State, *, depth: int) -> bool:
        if not stat.S_ISDIR(os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode):
            return False
        inner = os.open(name, _DIRECTORY, dir_fd=handle)
        try:
            return self._matching(inner, f"{path}/", pattern, state, depth=depth)
        finally:
            os.close(inner)

    def _may_look(self, name: str, depth: int) -> bool:
        self._entries += 1
        if self._entries > MOST_ENTRIES or depth > MOST_DEPTH:
            return self._collection.refuse(name, "there are too many files, or directories in directories")
        return True

    def take(self, above: int, entry: str, name: str, *, depth: int) -> None:
        """One entry of an opened directory; raises OSError when it cannot be looked at."""
        if not self._may_look(name, depth):
            return
        found = os.stat(entry, dir_fd=above, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode):
            self._directory(above, entry, name, depth)
        elif not stat.S_ISREG(found.st_mode):
            self._collection.refuse(name, "it is a link" if stat.S_ISLNK(found.st_mode) else "it is no regular file")
        elif found.st_nlink > 1:
            # It may be a file of somebody else on this machine, which the run could name and not read.
            self._collection.refuse(name, "it is a link: the same file has another name")
        elif self._collection.wants(name, found.st_size):
            self._file(above, entry, name, found)

    def _directory(self, above: int, entry: str, name: str, depth: int) -> None:
        handle = os.open(entry, _DIRECTORY, dir_fd=above)
        try:
            with os.scandir(handle) as found:
                names = sorted(one.name for one in itertools.islice(found, MOST_ENTRIES + 1))
            for inner in names:
                try:
                    self.take(handle, inner, f"{name}/{inner}", depth=depth + 1)
                except OSError as error:
                    self._collection.refuse(f"{name}/{inner}", f"it could not be read: {error.strerror}")
        finally:
            os.close(handle)

    def _file(self, above: int, entry: str, name: str, seen: os.stat_result) -> None:
        handle = os.open(entry, _FILE, dir_fd=above)
        with os.fdopen(handle, "rb") as file:
            found = os.fstat(handle)
            if (found.st_dev, found.st_ino, found.st_nlink) != (seen.st_dev, seen.st_ino, 1):
                self._collection.refuse(name, "it changed while it was looked at")
                return
            self._collection.take(name, seen.st_size, file.read)
