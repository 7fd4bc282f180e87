"""Index the jobs of an owner in their order, instead of by the foreign key alone."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = (('controlplane', '0036_updates_of_groups'),)

    # The first operation takes the stronger lock of jobs: upgrading it could be a deadlock.
    operations = (
        migrations.AlterField(
            model_name='job',
            name='owner',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='jobs', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(fields=['owner', '-id'], name='job_owner_newest'),
        ),
    )
