"""Artifacts: files that attempts leave, stored for their tenants (rule Q8).

The row comes before the bytes and goes after them, so no byte in the storage is without a row: whatever breaks off in
between, the sweep (`runners.services.retention`) meets a row and deletes what it names. A repeat of the same upload is
answered with what stands; sums are judged under the attempt's row lock, so caps hold for uploads at once.
"""

from __future__ import annotations

import hashlib
import logging
import mimetypes
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from django.core.files import File
from django.db import transaction

from admission.drivers import Driver
from controlplane.core.conf import conf
from controlplane.core.errors import Conflict, DomainError, InvalidInput
from controlplane.core.sql import execute, one
from runners import kept_sql as sql
from runners.agent.artifact_names import wrong_name
from runners.services.logs import HoldSuperseded
from runners.storage import artifact_storage, takes_a_stream

if TYPE_CHECKING:
    _File = File[bytes]
else:
    _File = File  # generic in the stubs alone

log = logging.getLogger(__name__)

CHUNK_BYTES = 256 << 10
LATE_SECONDS = 600.0
"""After its attempt's end a driver may still bring what it could not deliver before, as with logs."""


class Readable(Protocol):
    """Something to read bytes from, once."""

    def read(self, size: int = -1, /) -> bytes:
        """The next ones; none at the end."""


class ArtifactTooBig(DomainError):
    """A cap refuses it."""

    code = "artifact_too_big"


class StorageFailed(Exception):
    """The storage did not take it. Nothing is kept of the upload; it may be repeated."""


class UploadBroken(Exception):
    """What arrived is not what was announced: the connection broke, or the file changed."""


@dataclass(frozen=True, slots=True)
class Announced:
    """What the driver says it brings."""

    name: str
    size: int
    sha256: bytes


class _Arriving(_File):
    """The upload as a file that can be read once: counts, sums, and ends where it was announced to end."""

    def __init__(self, stream: Readable, announced: Announced) -> None:
        super().__init__(cast("Any", stream), name=announced.name)
        self.size = announced.size
        self.left = announced.size
        self.sum = hashlib.sha256()

    def chunks(self, chunk_size: int | None = None) -> Iterator[bytes]:
        """All of it, in pieces."""
        while piece := self.read(chunk_size or CHUNK_BYTES):
            yield piece

    def read(self, num_bytes: int | None = None) -> bytes:
        """The next piece; never more than was announced."""
        wanted = min(self.left, CHUNK_BYTES if num_bytes is None or num_bytes < 0 else num_bytes)
        piece = bytes(cast("Any", self.file).read(wanted)) if wanted else b""
        if wanted and not piece:
            raise UploadBroken(f"the upload ended {self.left} bytes early")
        self.left -= len(piece)
        self.sum.update(piece)
        return piece


def store_artifact(driver: Driver, run: int, epoch: int, announced: Announced, stream: Readable) -> bool:
    """Store one file of a hold; False: the same one is stored already, and the stream was not read.

    Raises:
        HoldSuperseded: the run is not this driver's under this epoch, and was not within the late window either.
        InvalidInput: the name is none.
        ArtifactTooBig: a cap refuses it.
        Conflict: another file of this name is stored.
        UploadBroken, StorageFailed: nothing is kept; repeat it.
    """
    if wrong := wrong_name(announced.name):
        raise InvalidInput(f"The name {announced.name[:100]!r} {wrong}.")
    unique = uuid.uuid4().hex
    # Few directories that stay, not one for each run: nobody would remove those.
    key = f"{unique[:2]}/{unique}"
    row = _reserve(driver, run, epoch, announced, key)
    if row is None:
        return False
    try:
        _save(key, announced, stream)
    except BaseException:
        # Also when this thread is told to end: the sweep deletes what the row names, after its time.
        execute(sql.DOOM_ARTIFACT, {"id": row})
        raise
    if not execute(sql.CONFIRM_ARTIFACT, {"id": row}):
        artifact_storage().delete(key)
        raise StorageFailed("the upload took too long and was given up; repeat it")
    return True


def _reserve(driver: Driver, run: int, epoch: int, announced: Announced, key: str) -> int | None:
    """The row of a new upload; None when the same file is stored."""
    asked = {"run": run, "epoch": epoch, "window_seconds": LATE_SECONDS, **driver.identity()}
    with transaction.atomic():
        keeper = one(sql.LOCK_KEEPER, asked)
        if keeper is None:
            raise HoldSuperseded(f"run {run} is not held under epoch {epoch}")
        place = {"run": run, "attempt": keeper["attempt"]}
        there = one(sql.READ_KEPT_NAME, {**place, "name": announced.name})
        if there is not None and there["stored"]:
            if (there["size"], bytes(there["sha256"])) != (announced.size, announced.sha256):
                raise Conflict(f"Another file {announced.name!r} of this attempt is stored.", code="artifact_exists")
            return None
        if there is not None:
            # An upload that broke off, or whose sender gave it up: this one takes its place.
            execute(sql.DOOM_ARTIFACT, {"id": there["id"]})
        _refuse_above_caps(announced, place)
        content_type = mimetypes.guess_type(announced.name)[0] or "application/octet-stream"
        facts = {"name": announced.name, "size": announced.size, "sha256": announced.sha256, "key": key}
        row = one(sql.RESERVE_ARTIFACT, {**place, **facts, "content_type": content_type[:100]})
        assert row is not None  # noqa: S101 - an insert without a condition returns its row
        return int(row["id"])


def _refuse_above_caps(announced: Announced, place: dict[str, Any]) -> None:
    settings = conf()
    if announced.size > settings.artifact_file_bytes:
        raise ArtifactTooBig(
            f"{announced.name!r} has {announced.size} bytes; a kept file has at most {settings.artifact_file_bytes}."
        )
    kept = one(sql.READ_KEPT, place) or {"files": 0, "bytes": 0}
    if kept["files"] >= settings.artifact_count:
        raise ArtifactTooBig(f"This attempt keeps {kept['files']} files already, as many as it may.")
    if kept["bytes"] + announced.size > settings.artifact_run_bytes:
        raise ArtifactTooBig(
            f"With {announced.name!r} this attempt would keep {kept['bytes'] + announced.size} bytes; "
            f"at most {settings.artifact_run_bytes}."
        )


def _save(key: str, announced: Announced, stream: Readable) -> None:
    storage = artifact_storage()
    arriving = _Arriving(stream, announced)
    try:
        if takes_a_stream(storage):
            saved = storage.save(key, arriving)
        else:
            with tempfile.SpooledTemporaryFile(8 << 20) as waiting:
                for piece in arriving.chunks():
                    waiting.write(piece)
                waiting.seek(0)
                saved = storage.save(key, File(cast("Any", waiting), name=key))
    except UploadBroken:
        raise
    except Exception as error:
        log.exception("artifacts.not_stored", extra={"key": key})
        raise StorageFailed("the storage of artifacts does not take it now") from error
    if saved != key:
        storage.delete(saved)
        raise StorageFailed(f"the storage would not use the name {key}")
    if arriving.left or arriving.sum.digest() != announced.sha256:
        raise UploadBroken("what arrived is not what was announced")
