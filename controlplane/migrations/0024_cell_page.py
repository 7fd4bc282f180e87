"""Add changes and samples of cells, the start of a drain, and indexes of attempts by cell."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = (("controlplane", "0023_wanted_capacity"),)

    operations = (
        migrations.CreateModel(
            name="CellChange",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("at", models.DateTimeField()),
                ("from_state", models.CharField(max_length=12)),
                ("to_state", models.CharField(max_length=12)),
                ("reason", models.CharField(blank=True, default="", max_length=255)),
                (
                    "actor",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="Empty: the cell or the control plane.",
                        max_length=150,
                    ),
                ),
                (
                    "cell",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="controlplane.cell",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(fields=["cell", "id"], name="cell_change_of_cell"),
                    models.Index(fields=["at"], name="cell_change_at"),
                ],
            },
        ),
        migrations.CreateModel(
            name="CellSample",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("at", models.DateTimeField()),
                ("cpu_millis_used", models.PositiveIntegerField()),
                ("cpu_millis_reserved", models.PositiveIntegerField()),
                ("cpu_millis_capacity", models.PositiveIntegerField()),
                ("memory_mib_used", models.PositiveIntegerField()),
                ("memory_mib_reserved", models.PositiveIntegerField()),
                ("memory_mib_capacity", models.PositiveIntegerField()),
                ("gpu_used", models.PositiveIntegerField()),
                ("gpu_reserved", models.PositiveIntegerField()),
                ("gpu_capacity", models.PositiveIntegerField()),
                (
                    "cell",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="controlplane.cell",
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["at"], name="cell_sample_at")],
                "constraints": [
                    models.UniqueConstraint(fields=("cell", "at"), name="cell_sample_once_a_minute")
                ],
            },
        ),
        migrations.AddField(
            model_name="cell",
            name="draining_since",
            field=models.DateTimeField(
                blank=True,
                help_text="Since when DRAINING is the ordered state; empty: it is not.",
                null=True,
            ),
        ),
        migrations.AddIndex(
            model_name="attempt",
            index=models.Index(
                condition=models.Q(("released_at__isnull", False)),
                fields=["cell", "released_at"],
                name="attempt_released_by_cell",
            ),
        ),
        migrations.AddIndex(
            model_name="attempt",
            index=models.Index(
                condition=models.Q(
                    ("reason", "image_error"),
                    models.Q(
                        ("phase", "pulling"),
                        ("reason__in", ["build_timeout", "system_failure"]),
                        ("started_at", None),
                    ),
                    _connector="OR",
                ),
                fields=["cell", "finished_at"],
                name="attempt_image_failed",
            ),
        ),
    )
