"""The roles get the verbs of secrets."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.management import create_permissions
from django.db import migrations

from controlplane.roles import install_roles


def install(apps: Any, _schema_editor: Any) -> None:
    for config in apps.get_app_configs():
        if config.label == "runners":
            # Historical app configurations have no models module, without which nothing would be made.
            config.models_module = True
            create_permissions(config, apps=apps, verbosity=0)
            config.models_module = None
    install_roles(apps.get_model("auth", "Group"), apps.get_model("auth", "Permission"))


class Migration(migrations.Migration):
    """Data only."""

    dependencies = (("controlplane", "0005_runner_verbs"), ("runners", "0003_secrets_and_artifacts"))

    operations = (migrations.RunPython(install, migrations.RunPython.noop),)
