"""Private directories on this machine for the input files and working directories of executions.

The base must be visible under the same path to whoever mounts from it: for Docker in another mount namespace (a
daemon with a private /tmp, Docker in Docker) set CONTROLPLANE_SCRATCH_DIR to a directory both see.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from runners.agent.executors.base import ExecutorError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from admission.spec import InputFile

ENVIRONMENT = "CONTROLPLANE_SCRATCH_DIR"


def base_directory() -> Path:
    """The base, made if missing. A default base that somebody else made is refused: they could swap our files."""
    configured = os.environ.get(ENVIRONMENT)
    base = Path(configured) if configured else Path(tempfile.gettempdir()) / f"wharfinger-{os.geteuid()}"
    try:
        base.mkdir(mode=0o711, parents=bool(configured), exist_ok=True)
        found = base.lstat()
    except OSError as error:
        raise ExecutorError(f"the scratch directory {base} cannot be made ({error}); set {ENVIRONMENT}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise ExecutorError(
            f"the scratch directory {base} must be a directory of this user that nobody else may write; "
            f"correct it or set {ENVIRONMENT} to another one"
        )
    return base


def place_files(directory: Path, files: Mapping[str, InputFile]) -> None:
    """Write input files below `directory`, readable by any user, directories included."""
    for relative, item in files.items():
        target = directory / relative
        _make_parents(directory, target.parent)
        target.write_bytes(item.content())
        target.chmod(0o755 if item.executable else 0o644)


def _make_parents(top: Path, parent: Path) -> None:
    # Explicitly, for the process's umask would otherwise decide whether the run's user may enter.
    missing = [p for p in (parent, *parent.parents) if p != top and p.is_relative_to(top) and not p.exists()]
    for path in reversed(missing):
        path.mkdir()
        path.chmod(0o755)


def remove_tree(directory: Path) -> None:
    """Remove a directory and what is in it; one that is not there is fine. Never follows links.

    Raises:
        ExecutorError: when something is left.
    """
    try:
        shutil.rmtree(directory)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ExecutorError(f"the scratch directory {directory} cannot be removed: {error}") from error
