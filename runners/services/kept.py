"""Reading artifacts: what an attempt left, until when it is kept, and the bytes."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import QuerySet
from django.http import FileResponse

from admission.models import Run
from controlplane.core.conf import conf
from controlplane.core.errors import NotFound
from runners.models import Artifact
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


class _Download(FileResponse):
    """Closes its file whether it was read or not."""

    block_size = CHUNK_BYTES


def download(kept: Kept, name: str) -> FileResponse:
    """One file as an attachment that no browser interprets. Raises NotFound."""
    artifact = next((one for one in kept.files if one.name == name), None)
    if artifact is None:
        raise NotFound(f"Attempt {kept.attempt} of run {kept.run} kept no file of that name.")
    try:
        opened = artifact_storage().open(artifact.key)
    except FileNotFoundError:
        log.exception("artifacts.bytes_missing", extra={"run": kept.run, "key": artifact.key})
        raise NotFound("The bytes of this file are not in the storage any more.") from None
    file_name = artifact.name.rpartition("/")[2]
    response = _Download(opened, as_attachment=True, filename=file_name, content_type=artifact.content_type)
    response["Content-Length"] = str(artifact.size)
    response["ETag"] = f'"{bytes(artifact.sha256).hex()}"'
    response["Artifact-Sha256"] = bytes(artifact.sha256).hex()
    response["X-Content-Type-Options"] = "nosniff"
    # What a tenant's command wrote must never act in this origin, whatever a browser makes of it.
    response["Content-Security-Policy"] = "sandbox; default-src 'none'"
    response["Cache-Control"] = "private, no-transform"
    return response
