"""What the django-q2 cluster runs. One line each into services."""

from __future__ import annotations

from runners.services.retention import delete_expired

RETENTION_MINUTES = 10


def retention() -> dict[str, int]:
    """Logs and claim answers past their time."""
    return delete_expired()
