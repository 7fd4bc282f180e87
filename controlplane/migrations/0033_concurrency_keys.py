"""Add concurrency keys: of jobs and shapes, and of the attempts that hold them."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = (('controlplane', '0032_delivered_until'),)

    operations = (
        migrations.AddField(
            model_name='attempt',
            name='concurrency_id',
            field=models.BigIntegerField(blank=True, help_text='The concurrency key that it holds until its release; empty: its job has none.', null=True),
        ),
        migrations.AddField(
            model_name='job',
            name='concurrency_id',
            field=models.BigIntegerField(blank=True, help_text='The id of its concurrency key in the project; empty: it has none.', null=True),
        ),
        migrations.AddField(
            model_name='shape',
            name='concurrency',
            field=models.JSONField(blank=True, help_text='The rule of the concurrency key of its jobs; empty: they have none.', null=True),
        ),
        migrations.AddIndex(
            model_name='attempt',
            index=models.Index(condition=models.Q(('concurrency_id__isnull', False), ('released_at', None)), fields=['concurrency_id', 'job'], name='attempt_holds_key'),
        ),
        migrations.AddIndex(
            model_name='attempt',
            index=models.Index(condition=models.Q(('concurrency_id__isnull', False)), fields=['concurrency_id', 'created_at'], name='attempt_started_with_key'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('concurrency_id__isnull', False), ('finished_at', None)), fields=['concurrency_id', 'id'], name='job_open_of_key'),
        ),
    )
