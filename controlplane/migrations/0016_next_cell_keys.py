"""Add the next key of a cell, which is valid beside the present one during a rotation."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = (("controlplane", "0015_fixed_tags"),)

    operations = (
        migrations.AddField(
            model_name="cell",
            name="next_key_salt",
            field=models.CharField(
                blank=True,
                default="",
                help_text="Salt of the next key, which is valid beside the present one; empty: none.",
                max_length=64,
            ),
        ),
        migrations.AddField(
            model_name="cell",
            name="next_key_until",
            field=models.DateTimeField(
                blank=True,
                help_text="When the next key is discarded, unless the cell has used it.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="cell",
            name="next_secret_key_id",
            field=models.CharField(blank=True, default="", max_length=16),
        ),
        migrations.AddConstraint(
            model_name="cell",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("next_key_salt", ""), ("next_key_until", None)),
                    models.Q(
                        models.Q(("next_key_salt", ""), _negated=True),
                        ("next_key_until__isnull", False),
                        ("revoked_at", None),
                    ),
                    _connector="OR",
                ),
                name="cell_next_key_ends",
            ),
        ),
    )
