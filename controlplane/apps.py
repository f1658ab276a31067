"""Django's entry point of the composition root."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class ControlplaneConfig(AppConfig):
    """Settings, site, health, metrics, `up`."""

    name = "controlplane"

    def ready(self) -> None:
        """Schedules are rows; they exist once the tables do."""
        post_migrate.connect(ensure_schedules, sender=self)


def ensure_schedules(**_: Any) -> None:
    """The recurring tasks of the cluster. Whatever an operator changed in the admin stays."""
    from django_q.models import Schedule

    from controlplane.tasks import RETENTION_MINUTES

    Schedule.objects.get_or_create(
        name="retention",
        defaults={
            "func": "controlplane.tasks.retention",
            "schedule_type": Schedule.MINUTES,
            "minutes": RETENTION_MINUTES,
            "repeats": -1,
        },
    )
