"""Add totals of usage, and the mark of the jobs that they contain."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = (('controlplane', '0028_notification_pages'),)

    operations = (
        migrations.CreateModel(
            name='UsageTotal',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('month', models.DateField(help_text='The first day of the month, in UTC.')),
                ('owner', models.CharField(help_text='Name of the user.', max_length=150)),
                ('job_name', models.CharField(blank=True, help_text='Empty: all names above the maximum number.', max_length=63)),
                ('attempts', models.BigIntegerField(default=0)),
                ('unmeasured_attempts', models.BigIntegerField(default=0, help_text='Attempts whose CPU time the cell did not report.')),
                ('cpu_seconds_requested', models.FloatField(default=0.0)),
                ('cpu_seconds_measured', models.FloatField(default=0.0)),
                ('cpu_seconds_used', models.FloatField(default=0.0)),
                ('memory_mib_seconds_requested', models.FloatField(default=0.0)),
                ('memory_mib_seconds_measured', models.FloatField(default=0.0)),
                ('memory_mib_seconds_used', models.FloatField(default=0.0, help_text='The peak of each attempt for its whole time.')),
                ('memory_peak_mib', models.FloatField(default=0.0, help_text='Of one attempt.')),
                ('gpu_seconds_requested', models.FloatField(default=0.0)),
            ],
        ),
        migrations.AddField(
            model_name='job',
            name='is_usage_counted',
            field=models.BooleanField(db_default=False, default=False, help_text='Whether the totals of usage contain its attempts.'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('is_usage_counted', False), ('settled_at__isnull', False)), fields=['id'], name='job_usage_uncounted'),
        ),
        migrations.AddField(
            model_name='usagetotal',
            name='project',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='controlplane.project'),
        ),
        migrations.AddConstraint(
            model_name='usagetotal',
            constraint=models.UniqueConstraint(fields=('month', 'project', 'owner', 'job_name'), name='usage_total_once'),
        ),
    )
