"""The roles get what recovery brought."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.management import create_permissions
from django.db import migrations

from controlplane.roles import install_roles


def install(apps: Any, _schema_editor: Any) -> None:
    config = apps.get_app_config("recovery")
    # Historical app configurations have no models module, without which nothing would be made.
    config.models_module = True
    create_permissions(config, apps=apps, verbosity=0)
    config.models_module = None
    install_roles(apps.get_model("auth", "Group"), apps.get_model("auth", "Permission"))


class Migration(migrations.Migration):
    """Data only."""

    dependencies = (("controlplane", "0002_leadership"), ("recovery", "0002_debts_and_holds"))

    operations = (migrations.RunPython(install, migrations.RunPython.noop),)
