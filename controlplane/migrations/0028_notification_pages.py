"""Find the latest message of a rule by an index: the admin lists it for each rule."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = (('controlplane', '0027_release_in_bulk'),)

    operations = (
        migrations.AlterField(
            model_name='notificationmessage',
            name='rule',
            field=models.ForeignKey(blank=True, db_index=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='messages', to='controlplane.notificationrule'),
        ),
        migrations.AddIndex(
            model_name='notificationmessage',
            index=models.Index(fields=['rule', 'id'], name='notification_message_of_rule'),
        ),
    )
