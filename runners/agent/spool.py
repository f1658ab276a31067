"""What a driver has not delivered yet, on the disk: results, output, kept files (rule Q12).

One file for each hold: a line of JSON (who, the job token, the result, where the output stands) and behind it the
output that was not delivered; beside it a directory with the kept files. Written once when a run has ended, flushed to
the disk before the result is first sent, and removed when the control plane has answered. So a result that was reached
is delivered also by a later life of the agent. Readable by this user alone: outputs and job tokens are in it.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runners.agent.artifacts import PRIVATE, Kept
from runners.agent.assignment import Ending, Result, RunKey

if TYPE_CHECKING:
    from collections.abc import Iterator

SUFFIX = ".hold"
MOST_BYTES = 2 << 30


class SpoolError(Exception):
    """The disk does not take it: what, and what to do."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """What of one hold was not delivered. Without a result it goes back to the control plane."""

    key: RunKey
    attempt: int
    job_token: str = field(repr=False)
    result: Result | None
    offset: int = 0
    output: bytes = field(default=b"", repr=False)
    kept: tuple[Kept, ...] = ()


class Spool:
    """A directory of one runner. Used by many threads, each for its own holds."""

    def __init__(self, directory: Path, most_bytes: int = MOST_BYTES) -> None:
        self._directory = directory
        self._most = most_bytes
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.chmod(0o700)
        except OSError as error:
            why = f"the spool {directory} cannot be made ({error.strerror})"
            raise SpoolError(f"{why}; set WHARFINGER_SPOOL to a directory of yours") from error

    def files(self, key: RunKey) -> Path:
        """A fresh directory for the kept files of a hold."""
        place = self._directory / f"{key.run}-{key.epoch}.files"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(mode=0o700)
        return place

    def put(self, waiting: Waiting) -> bool:
        """Write it, on the disk when this returns. False: the output did not fit any more, the result is there.

        Raises:
            SpoolError: nothing of it could be written.
        """
        fits = self._used() + len(waiting.output) <= self._most
        path = self._path(waiting.key)
        try:
            _write(path.with_suffix(".new"), _head(waiting), waiting.output if fits else b"")
            path.with_suffix(".new").replace(path)
            _flush(self._directory)
        except OSError as error:
            why = f"{path} cannot be written ({error.strerror})"
            raise SpoolError(f"{why}; make room, or set WHARFINGER_SPOOL") from error
        return fits

    def drop(self, key: RunKey) -> None:
        """It was delivered, or nobody takes it any more."""
        self._path(key).unlink(missing_ok=True)
        shutil.rmtree(self._directory / f"{key.run}-{key.epoch}.files", ignore_errors=True)

    def waiting(self) -> Iterator[Waiting]:
        """What an earlier life left, oldest first; what it had not finished writing is removed."""
        for path in sorted(self._directory.glob(f"*{SUFFIX}"), key=lambda found: found.stat().st_mtime):
            found = _read(path)
            if found is None:
                path.rename(path.with_suffix(".broken"))
                continue
            yield found
        for place in self._directory.glob("*.files"):
            if not place.with_suffix(SUFFIX).exists():
                shutil.rmtree(place, ignore_errors=True)

    def _path(self, key: RunKey) -> Path:
        return self._directory / f"{key.run}-{key.epoch}{SUFFIX}"

    def _used(self) -> int:
        return sum(found.stat().st_size for found in self._directory.glob(f"*{SUFFIX}"))


def _head(waiting: Waiting) -> bytes:
    kept = [{**asdict(one), "path": str(one.path)} for one in waiting.kept]
    head = {
        "run": waiting.key.run,
        "epoch": waiting.key.epoch,
        "attempt": waiting.attempt,
        "job_token": waiting.job_token,
        "result": None if waiting.result is None else asdict(waiting.result),
        "offset": waiting.offset,
        "kept": kept,
    }
    return json.dumps(head).encode() + b"\n"


def _write(path: Path, head: bytes, output: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, PRIVATE)
    with os.fdopen(handle, "wb") as file:
        file.write(head)
        file.write(output)
        file.flush()
        os.fsync(handle)


def _flush(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _read(path: Path) -> Waiting | None:
    """None: it is no file of ours, or was damaged."""
    try:
        head, _, output = path.read_bytes().partition(b"\n")
        said: dict[str, Any] = json.loads(head)
        result = said["result"]
        return Waiting(
            key=RunKey(said["run"], said["epoch"]),
            attempt=said["attempt"],
            job_token=said["job_token"],
            result=None if result is None else Result(**{**result, "ending": Ending(result["ending"])}),
            offset=said["offset"],
            output=output,
            kept=tuple(Kept(**{**one, "path": Path(one["path"])}) for one in said["kept"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
