"""What is done to the longest names can be written down too: the holder of a permit, the key of a counter."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """A longer limit of a text column: the catalogue alone, no row is touched."""

    dependencies = (("core", "0003_samples_and_holds"),)

    operations = (
        migrations.AlterModelOptions(
            name="auditentry",
            options={"ordering": ("-id",), "verbose_name": "audit entry", "verbose_name_plural": "audit entries"},
        ),
        migrations.AlterField(model_name="auditentry", name="subject", field=models.CharField(max_length=400)),
    )
