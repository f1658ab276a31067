"""The roles get what physical slots brought."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.management import create_permissions
from django.db import migrations

from controlplane.roles import install_roles


def install(apps: Any, _schema_editor: Any) -> None:
    config = apps.get_app_config("admission")
    # Historical app configurations have no models module, without which nothing would be made.
    config.models_module = True
    create_permissions(config, apps=apps, verbosity=0)
    config.models_module = None
    install_roles(apps.get_model("auth", "Group"), apps.get_model("auth", "Permission"))


class Migration(migrations.Migration):
    """Data only."""

    dependencies = (
        ("controlplane", "0003_recovery"),
        ("admission", "0006_physical_reports"),
    )

    operations = (migrations.RunPython(install, migrations.RunPython.noop),)
