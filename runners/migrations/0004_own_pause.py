"""Whose a pause is: a machine takes back its own, never an operator's."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """A column with a default: no row is rewritten. Pauses that stand count as operators'."""

    dependencies = (("runners", "0003_secrets_and_artifacts"),)

    operations = (
        migrations.AddField(
            model_name="runner",
            name="pause_own",
            field=models.BooleanField(
                db_default=False, editable=False, help_text="The machine itself asked for its pause."
            ),
        ),
    )
