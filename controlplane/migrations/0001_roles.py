"""The roles. Permissions are made here first: Django makes them only after the last migration."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.management import create_permissions
from django.db import migrations

from controlplane.roles import APPS, install_roles


def install(apps: Any, _schema_editor: Any) -> None:
    for config in apps.get_app_configs():
        if config.label not in (*APPS, "auth"):
            continue
        # Historical app configurations have no models module, without which nothing would be made.
        config.models_module = True
        create_permissions(config, apps=apps, verbosity=0)
        config.models_module = None
    install_roles(apps.get_model("auth", "Group"), apps.get_model("auth", "Permission"))


class Migration(migrations.Migration):
    """Data only."""

    dependencies = (
        ("auth", "0012_alter_user_first_name_max_length"),
        ("contenttypes", "0002_remove_content_type_name"),
        ("core", "0002_audit_append_only"),
        ("admission", "0002_ledger_rules"),
        ("recovery", "0001_initial"),
        ("runners", "0001_initial"),
        ("django_q", "0019_alter_task_options_alter_ormq_key_alter_ormq_lock_and_more"),
    )

    operations = (migrations.RunPython(install, migrations.RunPython.noop),)
