"""What the shim removes when nothing of its run is left: cgroup and directory. Imported by it, so imports little."""

# ruff: noqa: PTH106, PTH108, PTH114, PTH118

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

GROUP_TRIES = 100


def remove_groups(directories: Iterable[str]) -> None:
    """A group whose last process has just ended is busy for a moment. What stays is the driver's to tell of."""
    for directory in directories:
        for _ in range(GROUP_TRIES):
            try:
                os.rmdir(directory)
                break
            except FileNotFoundError:
                break
            except OSError:
                time.sleep(0.01)


def remove_tree(top: str) -> None:
    """What cannot be removed is left for the driver, which looks and tells. Nobody is left who could swap a link."""
    for directory, names, files in os.walk(top, topdown=False):
        try:
            for name in files:
                os.unlink(os.path.join(directory, name))
            for name in names:
                path = os.path.join(directory, name)
                (os.unlink if os.path.islink(path) else os.rmdir)(path)
        except OSError:
            return
    try:
        os.rmdir(top)
    except OSError:
        return
