"""Add requests of tasks and attempts that a retry rule increased."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = (('controlplane', '0033_concurrency_keys'),)

    operations = (
        migrations.RemoveIndex(
            model_name='attempt',
            name='attempt_unreleased',
        ),
        migrations.AddField(
            model_name='attempt',
            name='resources',
            field=models.JSONField(blank=True, help_text='Its request, if a retry rule increased it; empty: that of its group.', null=True),
        ),
        migrations.AddField(
            model_name='task',
            name='resources',
            field=models.JSONField(blank=True, help_text='Its request, if a retry rule increased it; empty: that of its group.', null=True),
        ),
        migrations.AlterField(
            model_name='task',
            name='shape_id',
            field=models.BigIntegerField(help_text='The shape of its group, or that of its own request.'),
        ),
        migrations.AddIndex(
            model_name='attempt',
            index=models.Index(condition=models.Q(('released_at', None)), fields=['cell', 'group'], include=('resources',), name='attempt_unreleased'),
        ),
        migrations.AddIndex(
            model_name='task',
            index=models.Index(condition=models.Q(('resources__isnull', False), ('state', 1)), fields=['group', 'index'], name='task_grown'),
        ),
    )
