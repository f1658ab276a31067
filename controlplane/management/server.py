"""What every server process checks before it serves."""

from __future__ import annotations

from django.core import checks
from django.core.management.base import CommandError
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor

from controlplane.core import environment


def refuse_unless_ready() -> None:
    """Refuse to start on unapplied migrations, contradicting settings, or a secret key of this process alone."""
    errors = [m for m in checks.run_checks(tags=["controlplane"]) if m.level >= checks.ERROR]
    if errors:
        raise CommandError("\n".join(f"{e.id}: {e.msg} {e.hint or ''}" for e in errors))
    if environment.ephemeral:
        raise CommandError(
            "SECRET_KEY is not set. Every process of the fleet needs the same one: "
            "set SECRET_KEY, or SECRET_KEY_FILE to a file that holds it."
        )
    try:
        executor = MigrationExecutor(connection)
        plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    except DatabaseError as error:
        raise CommandError(f"The database does not answer; check DATABASE_URL. It was said: {error}") from error
    if plan:
        names = ", ".join(f"{m.app_label}.{m.name}" for m, _ in plan[:5])
        raise CommandError(f"{len(plan)} migrations are not applied ({names}, …). Run: manage.py migrate")
