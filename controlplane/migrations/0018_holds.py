"""Add holds of jobs and projects, and the place of jobs in their band."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = (('controlplane', '0017_pool_samples'),)

    operations = (
        migrations.CreateModel(
            name='Hold',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('held_at', models.DateTimeField()),
                ('held_by', models.CharField(max_length=150)),
                ('role', models.CharField(choices=[('viewer', 'viewer'), ('submitter', 'submitter'), ('manager', 'manager'), ('operator', 'operator')], help_text="The role of its holder on the project; a lower one cannot release it.", max_length=16)),
                ('reason', models.TextField()),
                ('ended_at', models.DateTimeField(blank=True, null=True)),
            ],
        ),
        migrations.AddField(
            model_name='job',
            name='is_held',
            field=models.BooleanField(db_default=False, default=False, help_text='Whether it has an open hold of its own; placement skips its waiting tasks.'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('is_held', True)), fields=['id'], name='job_held'),
        ),
        migrations.AddField(
            model_name='hold',
            name='job',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='holds', to='controlplane.job'),
        ),
        migrations.AddField(
            model_name='hold',
            name='project',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='holds', to='controlplane.project'),
        ),
        migrations.AddConstraint(
            model_name='hold',
            constraint=models.CheckConstraint(condition=models.Q(('job__isnull', True), ('project__isnull', True), _connector='XOR'), name='hold_of_job_or_project'),
        ),
        migrations.AddConstraint(
            model_name='hold',
            constraint=models.UniqueConstraint(condition=models.Q(('ended_at', None)), fields=('job',), name='hold_open_once_of_job'),
        ),
        migrations.AddConstraint(
            model_name='hold',
            constraint=models.UniqueConstraint(condition=models.Q(('ended_at', None)), fields=('project',), name='hold_open_once_of_project'),
        ),
        migrations.AddField(
            model_name="job",
            name="queue_rank",
            field=models.BigIntegerField(
                db_default=0,
                default=0,
                help_text="Its place in its band, the lowest first; 0 unless it was moved.",
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(
                    models.Q(("queue_rank", 0), _negated=True), ("finished_at", None)
                ),
                fields=["pool", "band", "queue_rank"],
                name="job_moved",
            ),
        ),
    )
