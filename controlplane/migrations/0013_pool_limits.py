"""Add the networks of inputs to pools, and describe the further limits of jobs."""

import django.contrib.postgres.fields
from django.db import migrations, models

import controlplane.models.pools


class Migration(migrations.Migration):
    dependencies = (("controlplane", "0012_stored_bytes"),)

    operations = (
        migrations.AddField(
            model_name="pool",
            name="input_networks",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.CharField(max_length=43),
                blank=True,
                default=list,
                help_text="Networks from which inputs of tasks may be fetched although they are not"
                " public, separated by commas: 10.1.0.0/16. CELLRUN_CELL_ALLOWED_NETWORKS of a cell"
                " replaces them.",
                size=None,
                validators=[controlplane.models.pools.check_networks],
            ),
        ),
        migrations.AlterField(
            model_name="pool",
            name="job_limits",
            field=models.JSONField(
                blank=True,
                default=dict,
                help_text="Limits for the values of jobs: max_pids, max_ttl_seconds, max_retries,"
                " max_grace_seconds, min_check_interval_seconds, max_ports, max_shm_mib,"
                " max_outputs, max_artifact_mib, default_disk_mib, always_pull; missing ones"
                " have their defaults.",
                validators=[controlplane.models.pools.check_job_limits],
            ),
        ),
    )
