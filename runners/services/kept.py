"""Reading artifacts: what an attempt left, until when it is kept, and the bytes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet
from django.http import FileResponse, HttpResponse
from django.http.response import HttpResponseBase

from admission.models import Run
from controlplane.core.conf import conf
from controlplane.core.errors import NotFound
from runners.models import Artifact
from runners.services.ranges import Part, asked_part, is_known
from runners.storage import artifact_storage

log = logging.getLogger(__name__)

CHUNK_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Kept:
    """What one attempt left. `kept_until` null: its run has not ended."""

    run: int
    attempt: int
    state: str
    files: list[Artifact]
    kept_until: datetime | None
    log_kept_until: datetime | None


def read_kept(run: int, *, attempt: int | None = None, tenant_id: int | None = None) -> Kept:
    """What an attempt left, the latest one unless named. Raises NotFound, for another tenant's run too."""
    found = Run.objects.filter(pk=run).only("id", "attempt", "state", "finished_at", "tenant_id").first()
    if found is None or (tenant_id is not None and found.tenant_id != tenant_id):
        raise NotFound(f"There is no run {run}.")
    number = attempt or found.attempt
    files = list(_shown().filter(run=run, attempt=number).order_by("name"))
    settings = conf()
    return Kept(
        run=run,
        attempt=number,
        state=found.state,
        files=files,
        kept_until=_until(found.finished_at, settings.artifact_retention_days),
        log_kept_until=_until(found.finished_at, settings.log_retention_days),
    )


def _shown() -> QuerySet[Artifact]:
    return Artifact.objects.filter(stored_at__isnull=False, doomed_at__isnull=True)


def _until(finished: datetime | None, days: float) -> datetime | None:
    return None if finished is None else finished + timedelta(days=days)


class _Bytes:
    """A part of an opened file."""

    def __init__(self, file: Any, part: Part) -> None:
        file.seek(part.first)
        self._file = file
        self._left = part.length

    def read(self, size: int) -> bytes:
        """The next bytes of it."""
        piece: bytes = self._file.read(min(size, self._left))
        self._left -= len(piece)
        return piece

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class _Download(FileResponse):
    """Closes its file whether it was read or not."""

    block_size = CHUNK_BYTES


def download(kept: Kept, name: str, asked: Mapping[str, str]) -> HttpResponseBase:
    """One file, or the part of it that the request headers ask for, as an attachment that no browser interprets.

    Raises NotFound, NoSuchPart.
    """
    artifact = next((one for one in kept.files if one.name == name), None)
    if artifact is None:
        raise NotFound(f"Attempt {kept.attempt} of run {kept.run} kept no file of that name.")
    etag = f'"{bytes(artifact.sha256).hex()}"'
    if is_known(asked, etag):
        return _described(HttpResponse(status=304), artifact, etag)
    part = asked_part(asked, etag, artifact.size)
    try:
        opened = artifact_storage().open(artifact.key)
    except FileNotFoundError:
        log.exception("artifacts.bytes_missing", extra={"run": kept.run, "key": artifact.key})
        raise NotFound("The bytes of this file are not in the storage any more.") from None
    file_name = artifact.name.rpartition("/")[2]
    sent = opened if part is None else _Bytes(opened, part)
    response = _Download(sent, as_attachment=True, filename=file_name, content_type=artifact.content_type)
    response["Content-Length"] = str(artifact.size if part is None else part.length)
    if part is not None:
        response.status_code = 206
        response["Content-Range"] = f"bytes {part.first}-{part.first + part.length - 1}/{artifact.size}"
    return _described(response, artifact, etag)


def _described(response: HttpResponseBase, artifact: Artifact, etag: str) -> HttpResponseBase:
    response["ETag"] = etag
    response["Accept-Ranges"] = "bytes"
    response["Artifact-Sha256"] = bytes(artifact.sha256).hex()
    response["X-Content-Type-Options"] = "nosniff"
    # What a tenant's command wrote must never act in this origin, whatever a browser makes of it.
    response["Content-Security-Policy"] = "sandbox; default-src 'none'"
    response["Cache-Control"] = "private, no-transform"
    return response
