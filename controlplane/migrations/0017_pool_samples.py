"""Add the samples of pools."""

import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models


def _numbers(text: str) -> django.contrib.postgres.fields.ArrayField:
    return django.contrib.postgres.fields.ArrayField(
        base_field=models.PositiveIntegerField(), help_text=text, size=None
    )


class Migration(migrations.Migration):
    dependencies = (("controlplane", "0016_next_cell_keys"),)

    operations = (
        migrations.CreateModel(
            name="PoolSample",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("at", models.DateTimeField()),
                ("waiting", _numbers("PENDING tasks by band.")),
                ("stuck", _numbers("Of these, by band: no cell of the pool can run them.")),
                ("held", _numbers("Attempts that hold capacity, by band.")),
                (
                    "started",
                    models.PositiveIntegerField(default=0, help_text="Starts of programs."),
                ),
                (
                    "latencies",
                    _numbers("First starts, in buckets of the time since their tasks could start."),
                ),
                ("succeeded", models.PositiveIntegerField(default=0)),
                (
                    "failed",
                    models.PositiveIntegerField(
                        default=0,
                        help_text="Tasks that ended FAILED, WORKER_FAILED or UNSCHEDULABLE.",
                    ),
                ),
                (
                    "killed",
                    models.PositiveIntegerField(
                        default=0, help_text="Tasks that ended KILLED or PREEMPTED."
                    ),
                ),
                (
                    "failures",
                    models.JSONField(
                        default=dict,
                        help_text="By reason: ended tasks, retried attempts, and the last three"
                        " jobs.",
                    ),
                ),
                (
                    "used",
                    models.JSONField(default=dict, help_text="Held amount of each resource."),
                ),
                ("capacity", models.JSONField(default=dict, help_text="Of READY cells.")),
                (
                    "pool",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="controlplane.pool",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("at", "pool"), name="pool_sample_once_at_an_instant"
                    )
                ],
            },
        ),
    )
