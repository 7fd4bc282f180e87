"""Order the index of the jobs of an owner, so that the newest ones are found by it."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = (('controlplane', '0036_updates_of_groups'),)

    operations = (
        migrations.AddIndex(
            model_name='job',
            index=models.Index(fields=['owner', '-id'], name='job_owner_newest'),
        ),
        migrations.AlterField(
            model_name='job',
            name='owner',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='jobs', to=settings.AUTH_USER_MODEL),
        ),
    )
