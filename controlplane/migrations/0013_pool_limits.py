"""Describe the further limits of jobs of a pool."""

from django.db import migrations, models

import controlplane.models.pools


class Migration(migrations.Migration):
    dependencies = (("controlplane", "0011_cell_secret_key_id"),)

    operations = (
        migrations.AlterField(
            model_name="pool",
            name="job_limits",
            field=models.JSONField(
                blank=True,
                default=dict,
                help_text="Limits for the values of jobs: max_pids, max_ttl_seconds, max_retries,"
                " max_grace_seconds, min_check_interval_seconds, max_ports, max_shm_mib,"
                " max_outputs, max_artifact_mib, default_disk_mib; missing ones have their"
                " defaults.",
                validators=[controlplane.models.pools.check_job_limits],
            ),
        ),
    )
