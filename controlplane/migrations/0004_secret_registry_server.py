"""Add the registry of a login to secrets; existing logins are for Docker Hub only."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = (("controlplane", "0003_cells_and_their_keys"),)

    operations = (
        migrations.AddField(
            model_name="secret",
            name="registry_server",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="Registry of the login in the value; empty: it is none, or an earlier"
                " version wrote it without a server.",
                max_length=255,
            ),
        ),
    )
