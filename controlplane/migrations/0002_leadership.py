"""The roles get what leadership brought; the schedule that a loop replaced goes."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.management import create_permissions
from django.db import migrations

from controlplane.roles import install_roles


def install(apps: Any, _schema_editor: Any) -> None:
    for config in apps.get_app_configs():
        if config.label in ("leadership", "core"):
            # Historical app configurations have no models module, without which nothing would be made.
            config.models_module = True
            create_permissions(config, apps=apps, verbosity=0)
            config.models_module = None
    install_roles(apps.get_model("auth", "Group"), apps.get_model("auth", "Permission"))
    apps.get_model("django_q", "Schedule").objects.filter(func="controlplane.tasks.retention").delete()


class Migration(migrations.Migration):
    """Data only."""

    dependencies = (
        ("controlplane", "0001_roles"),
        ("core", "0003_samples_and_holds"),
        ("leadership", "0001_initial"),
    )

    operations = (migrations.RunPython(install, migrations.RunPython.noop),)
