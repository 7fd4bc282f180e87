"""Add limits of pools for the values of jobs."""

from django.db import migrations, models

import controlplane.models.pools


class Migration(migrations.Migration):
    dependencies = (("controlplane", "0005_pool_capabilities"),)

    operations = (
        migrations.AddField(
            model_name="pool",
            name="job_limits",
            field=models.JSONField(
                blank=True,
                default=dict,
                help_text="Limits for the values of jobs: max_pids, max_ttl_seconds, max_retries,"
                " max_grace_seconds, min_check_interval_seconds; missing ones have their defaults.",
                validators=[controlplane.models.pools.check_job_limits],
            ),
        ),
    )
