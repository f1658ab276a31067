"""What a run left, on its way from its working directory to the control plane.

Whatever comes in is the run's own doing: names, sizes and kinds of files are what a hostile command could make them.
So a collection is a flat directory of regular files with names of our own, bounded in number and bytes; what is not
taken is said in the run's log.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from runners.agent.artifact_names import wrong_name

PRIVATE = 0o600
PIECE_BYTES = 1 << 20
MOST_NOTES = 20

Read = Callable[[int], bytes]
"""The next bytes of a file; none at its end."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one attempt may keep; the server says its own, which it judges again."""

    file_bytes: int = 256 << 20
    run_bytes: int = 1 << 30
    files: int = 1000


@dataclass(frozen=True, slots=True)
class Kept:
    """One collected file."""

    name: str
    size: int
    sha256: str
    path: Path


@dataclass(slots=True)
class Collected:
    """Files taken so far, and what was not taken and why."""

    directory: Path
    limits: Limits
    kept: list[Kept] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unsaid: int = 0
    size: int = 0

    def wants(self, name: str, size: int) -> bool:
        """Whether a file of this name and size is taken; if not, the reason is noted."""
        if any(one.name == name for one in self.kept):
            return False  # Named twice, by a directory and by itself.
        if wrong := wrong_name(name):
            return self.refuse(name, f"its name {wrong}")
        if size > self.limits.file_bytes:
            return self.refuse(name, f"it has {size} bytes, above the {self.limits.file_bytes} of one file")
        if self.size + size > self.limits.run_bytes:
            return self.refuse(name, f"with its {size} bytes the run would keep more than {self.limits.run_bytes}")
        if len(self.kept) >= self.limits.files:
            return self.refuse(name, f"the run keeps {self.limits.files} files already, as many as it may")
        return True

    def refuse(self, name: str, why: str) -> bool:
        """Note that this one is not kept. Always False."""
        if len(self.notes) < MOST_NOTES:
            # Escaped: a name is the run's own text, and must not look like a line of ours.
            self.notes.append(f"{name[:200]!a} is not kept: {why}")
        else:
            self.unsaid += 1
        return False

    def take(self, name: str, size: int, read: Read) -> None:
        """Copy one wanted file. One that shrinks or breaks off while it is read is not kept."""
        path = self.directory / f"{len(self.kept):05d}"
        digest, left = hashlib.sha256(), size
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, PRIVATE)
        with os.fdopen(handle, "wb") as file:
            while left and (piece := read(min(left, PIECE_BYTES))):
                file.write(piece)
                digest.update(piece)
                left -= len(piece)
        if left:
            path.unlink()
            self.refuse(name, f"it ended {left} bytes early")
            return
        self.kept.append(Kept(name, size, digest.hexdigest(), path))
        self.size += size

    def said(self) -> list[str]:
        """What stands in the run's log about it."""
        more = [f"{self.unsaid} more files are not kept"] if self.unsaid else []
        return [*self.notes, *more]
