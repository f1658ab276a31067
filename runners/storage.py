"""Where the bytes of artifacts are: a directory, or a bucket (CONTROLPLANE_ARTIFACT_BUCKET)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from django.core.files.storage import FileSystemStorage, Storage, storages

ALIAS = "artifacts"


class DurableFileStorage(FileSystemStorage):
    """A directory. What it says is stored is on the disk: a row must not outlive its bytes through a power cut."""

    def save(self, name: str | None, content: Any, max_length: int | None = None) -> str:
        """As always, and flushed."""
        saved: str = super().save(name, content, max_length)
        path = Path(self.path(saved))
        _flush(path)
        _flush(path.parent)
        return saved


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def artifact_storage() -> Storage:
    """The storage of artifacts."""
    return storages[ALIAS]


def takes_a_stream(storage: Storage) -> bool:
    """Whether it can store what can be read only once; a client of a bucket wants to begin anew after a failure."""
    return isinstance(storage, FileSystemStorage)
