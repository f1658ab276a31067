"""django-q2's cluster, behind the checks that every server process makes."""

from __future__ import annotations

from typing import Any

from django_q.management.commands.qcluster import Command as ClusterCommand

from controlplane.management.server import refuse_unless_ready


class Command(ClusterCommand):
    """`manage.py qcluster`."""

    def handle(self, *args: Any, **options: Any) -> None:
        """Refuse on unapplied migrations, then run."""
        refuse_unless_ready()
        super().handle(*args, **options)
