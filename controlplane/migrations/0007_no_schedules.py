"""No role may write schedules any more: they are calls of any function, and the product makes none by hand."""

from __future__ import annotations

from typing import Any

from django.db import migrations

from controlplane.roles import take_back


def take(apps: Any, _schema_editor: Any) -> None:
    take_back(apps.get_model("auth", "Group"), apps.get_model("auth", "Permission"))


class Migration(migrations.Migration):
    """Data only."""

    dependencies = (("controlplane", "0006_secrets_role"),)

    operations = (migrations.RunPython(take, migrations.RunPython.noop),)
