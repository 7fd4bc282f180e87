"""Add the wanted capacity to the samples of pools."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = (("controlplane", "0022_long_names_of_actors"),)

    operations = (
        migrations.AddField(
            model_name="poolsample",
            name="wanted",
            field=models.JSONField(
                help_text="Held amounts, and those of waiting tasks that more cells could run;"
                " empty: taken before this field existed.",
                null=True,
            ),
        ),
    )
