"""Record until when a shard of the inbox has delivered, instead of when its probe came back."""

from django.db import migrations


class Migration(migrations.Migration):

    dependencies = (('controlplane', '0031_schedules'),)

    operations = (
        migrations.RenameField('inboxprobe', 'received_at', 'delivered_until'),
    )
