"""Add indexes that find unsuccessful tasks and attempts by state."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = (("controlplane", "0018_holds"),)

    operations = (
        migrations.AddIndex(
            model_name="attempt",
            index=models.Index(
                condition=models.Q(("state__in", [5, 6, 7, 8, 10])),
                fields=["state", "uid"],
                name="attempt_unsuccessful",
            ),
        ),
        migrations.AddIndex(
            model_name="task",
            index=models.Index(
                condition=models.Q(("state__in", [5, 6, 7, 8, 10])),
                fields=["state", "id"],
                name="task_unsuccessful",
            ),
        ),
    )
