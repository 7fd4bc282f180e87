from django.db import migrations, models


class Migration(migrations.Migration):
    """Add the time at which the key of a cell was revoked."""

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
        migrations.AddConstraint(
            model_name="cell",
            constraint=models.CheckConstraint(
                condition=models.Q(("revoked_at", None), ("state", "LOST"), _connector="OR"),
                name="cell_revoked_is_lost",
            ),
        ),
    ]
