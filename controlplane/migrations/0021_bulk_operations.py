"""Add bulk operations, which convergence runs in pages."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = (
        ('controlplane', '0020_indexes_of_lists_of_jobs'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    )

    operations = (
        migrations.CreateModel(
            name='BulkOperation',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('action', models.CharField(choices=[('cancel', 'cancel'), ('retry', 'retry'), ('delete', 'delete'), ('hold', 'hold')], max_length=8)),
                ('filter', models.JSONField(help_text='The fields that its jobs match.')),
                ('reason', models.TextField()),
                ('token_id', models.BigIntegerField(blank=True, help_text='The token that started it, which limits it; empty: a session of the admin.', null=True)),
                ('state', models.CharField(choices=[('running', 'running'), ('done', 'done'), ('stopped', 'stopped')], default='running', max_length=8)),
                ('created_at', models.DateTimeField()),
                ('turn_at', models.DateTimeField(help_text='When convergence last ran a page of it.')),
                ('ended_at', models.DateTimeField(blank=True, null=True)),
                ('ended_because', models.TextField(blank=True, default='', help_text='Why it was stopped.')),
                ('expected', models.PositiveIntegerField(help_text='Jobs that were counted before its start.')),
                ('after_job_id', models.BigIntegerField(default=0, help_text='The job up to which it is complete; it processes jobs by id.')),
                ('last_job_id', models.BigIntegerField(help_text='The newest job when it was started.')),
                ('done', models.PositiveIntegerField(default=0, help_text='Jobs on which it has acted.')),
                ('refused', models.PositiveIntegerField(default=0, help_text='Jobs that did not permit the action in their present state.')),
                ('refusals', models.JSONField(blank=True, default=list, help_text='The first refused jobs, with the texts.')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='bulk_operations', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'indexes': [models.Index(condition=models.Q(('ended_at', None)), fields=['turn_at'], name='bulk_operation_running')],
                'constraints': [models.CheckConstraint(condition=models.Q(('state', 'running'), ('ended_at__isnull', False), _connector='XOR'), name='bulk_operation_ended_iff_not_running')],
            },
        ),
    )
