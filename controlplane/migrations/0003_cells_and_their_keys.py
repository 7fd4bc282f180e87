import controlplane.models.pools
from django.db import migrations, models


class Migration(migrations.Migration):
    """Add what operators fix of a cell, what the cell reports, and when its key was revoked."""

    dependencies = [("controlplane", "0002_tokens")]

    operations = [
        migrations.AddField(
            model_name="cell",
            name="revoked_at",
            field=models.DateTimeField(
                blank=True,
                help_text="When its key was revoked: no message of the cell counts, and it gets"
                " none. A renewed key ends this.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="cell",
            name="node_labels",
            field=models.JSONField(
                blank=True,
                default=dict,
                help_text="Labels below node/, which only operators set; a part of `labels`.",
            ),
        ),
        migrations.AddField(
            model_name="cell",
            name="max_capacity",
            field=models.JSONField(
                blank=True,
                default=dict,
                help_text="Maximum of each resource in `capacity`; others are not limited.",
                validators=[controlplane.models.pools.check_amounts],
            ),
        ),
        migrations.AddField(
            model_name="cell",
            name="claims",
            field=models.JSONField(
                blank=True,
                default=dict,
                help_text="pool, labels and capacity as the cell reported them last; empty: never.",
            ),
        ),
        migrations.AddField(
            model_name="cell",
            name="mismatch",
            field=models.TextField(
                blank=True,
                default="",
                help_text="How the claims differ from the enrolment; the cell gets no work until"
                " they agree.",
            ),
        ),
        migrations.AddField(
            model_name="pool",
            name="cells_may_join",
            field=models.BooleanField(
                default=False,
                help_text="Whether a cell may move itself into the pool when it registers"
                " (CELLRUN_CELL_POOL); otherwise only operators move cells.",
            ),
        ),
        migrations.AddConstraint(
            model_name="cell",
            constraint=models.CheckConstraint(
                condition=models.Q(("revoked_at", None), ("state", "LOST"), _connector="OR"),
                name="cell_revoked_is_lost",
            ),
        ),
        migrations.AddConstraint(
            model_name="cell",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("state", "READY"), _negated=True),
                    ("mismatch", ""),
                    _connector="OR",
                ),
                name="cell_ready_agrees",
            ),
        ),
    ]
