"""Permit the action release in bulk operations."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = (('controlplane', '0026_notifications'),)

    operations = (
        migrations.AlterField(
            model_name='bulkoperation',
            name='action',
            field=models.CharField(choices=[('cancel', 'cancel'), ('retry', 'retry'), ('delete', 'delete'), ('hold', 'hold'), ('release', 'release')], max_length=8),
        ),
    )
