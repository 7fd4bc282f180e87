"""Add the capabilities that tasks of a pool may have although not privileged."""

import django.contrib.postgres.fields
from django.db import migrations, models

import controlplane.models.pools


class Migration(migrations.Migration):
    dependencies = (("controlplane", "0004_secret_registry_server"),)

    operations = (
        migrations.AddField(
            model_name="pool",
            name="allowed_capabilities",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.CharField(max_length=32),
                blank=True,
                default=list,
                help_text="Capabilities that tasks may have although not privileged, separated by"
                " commas: NET_RAW, SYS_PTRACE.",
                size=None,
                validators=[controlplane.models.pools.check_capabilities],
            ),
        ),
    )
