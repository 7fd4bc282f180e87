"""Add indexes that find jobs by the beginning of their names and guids."""

from django.db import migrations, models
from django.db.models.functions import Collate, Lower


class Migration(migrations.Migration):
    dependencies = (("controlplane", "0024_cell_page"),)

    operations = (
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                Collate(Lower("name"), "C"), name="job_name_beginning"
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                Collate(Lower("guid"), "C"),
                name="job_guid_beginning",
                condition=models.Q(guid__isnull=False),
            ),
        ),
    )
