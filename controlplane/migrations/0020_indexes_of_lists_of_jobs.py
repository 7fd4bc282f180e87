"""Add indexes that filter the list of jobs by band, and by one-off tasks."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = (("controlplane", "0019_indexes_of_unsuccessful_work"),)

    operations = (
        migrations.AddIndex(
            model_name="job",
            index=models.Index(fields=["band", "-id"], name="job_band_newest"),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(fields=["is_one_off", "-id"], name="job_one_off_newest"),
        ),
    )
