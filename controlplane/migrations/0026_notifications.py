"""Add notifications to people: addresses, rules, events and messages."""

import controlplane.domain.state.states
import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('controlplane', '0025_indexes_of_search'),
    ]

    operations = [
        migrations.CreateModel(
            name='JobEnd',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('job_id', models.BigIntegerField(unique=True)),
                ('at', models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name='NotificationAddress',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=63, unique=True)),
                ('sealed', models.BinaryField(help_text='The URL of Apprise, which contains secrets.')),
                ('masked', models.CharField(help_text='The scheme of the URL.', max_length=63)),
                ('service', models.CharField(help_text='The service that the URL names.', max_length=100)),
                ('created_at', models.DateTimeField()),
                ('updated_at', models.DateTimeField()),
            ],
            options={
                'verbose_name_plural': 'notification addresses',
                'ordering': ('name',),
            },
        ),
        migrations.CreateModel(
            name='NotificationEvent',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('alert_id', models.BigIntegerField(blank=True, null=True)),
                ('job_id', models.BigIntegerField(blank=True, null=True)),
                ('is_resolved', models.BooleanField(default=False, help_text='Whether the alert was closed.')),
                ('is_critical', models.BooleanField(default=False)),
                ('at', models.DateTimeField()),
                ('line', models.TextField()),
                ('sent_at', models.DateTimeField(blank=True, help_text='When a message was composed that reports it.', null=True)),
            ],
        ),
        migrations.CreateModel(
            name='NotificationMessage',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('is_test', models.BooleanField(default=False, help_text='A test has no rule and one try.')),
                ('title', models.TextField()),
                ('body', models.TextField()),
                ('state', models.CharField(choices=[('waiting', 'waiting'), ('claimed', 'claimed'), ('delivered', 'delivered'), ('abandoned', 'abandoned')], default=controlplane.domain.state.states.CallbackState['WAITING'], max_length=9)),
                ('tries', models.PositiveIntegerField(default=0)),
                ('due_at', models.DateTimeField(help_text='Time of the next try.')),
                ('give_up_at', models.DateTimeField(help_text='Time after which it is not tried again.')),
                ('claim', models.UUIDField(blank=True, null=True)),
                ('claimed_until', models.DateTimeField(blank=True, null=True)),
                ('created_at', models.DateTimeField()),
                ('ended_at', models.DateTimeField(blank=True, null=True)),
                ('last_error', models.TextField(blank=True, default='')),
            ],
        ),
        migrations.CreateModel(
            name='NotificationRule',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=63, unique=True)),
                ('is_enabled', models.BooleanField(default=True)),
                ('about', models.CharField(choices=[('alerts', 'alerts'), ('jobs', 'jobs')], help_text='Alerts, or ends of jobs.', max_length=6)),
                ('kinds', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=63), blank=True, default=list, help_text='Of alerts.', size=None)),
                ('only_critical', models.BooleanField(default=False, help_text='Only critical alerts.')),
                ('projects', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=127), blank=True, default=list, help_text='Of ended jobs, as domain/project.', size=None)),
                ('states', django.contrib.postgres.fields.ArrayField(base_field=models.PositiveSmallIntegerField(), blank=True, default=list, help_text='Final states of jobs.', size=None)),
                ('name_pattern', models.CharField(blank=True, default='', help_text='Of names of jobs, such as nightly-*.', max_length=100)),
                ('label', models.CharField(blank=True, default='', help_text='Value of the label notify of jobs.', max_length=63)),
                ('group_wait_seconds', models.PositiveIntegerField(default=30, help_text='From the first event to its message.')),
                ('group_interval_seconds', models.PositiveIntegerField(default=300, help_text='Between two messages, at least.')),
                ('quiet_zone', models.CharField(blank=True, default='', help_text='Time zone; empty: no quiet hours.', max_length=63)),
                ('quiet_begin', models.TimeField(blank=True, null=True)),
                ('quiet_end', models.TimeField(blank=True, null=True)),
                ('quiet_weekdays', django.contrib.postgres.fields.ArrayField(base_field=models.PositiveSmallIntegerField(), blank=True, default=list, help_text='Days on which quiet hours begin, Monday is 0; empty: all.', size=None)),
                ('critical_passes', models.BooleanField(default=True, help_text='Whether critical alerts are sent in quiet hours.')),
                ('since', models.DateTimeField(help_text='Events before it are not reported.')),
                ('last_at', models.DateTimeField(blank=True, help_text='When its last message was composed.', null=True)),
                ('uncounted', models.PositiveIntegerField(default=0, help_text='Unsent events beyond the stored ones, which the next message counts.')),
                ('created_at', models.DateTimeField()),
            ],
            options={
                'ordering': ('name',),
            },
        ),
        migrations.AddIndex(
            model_name='alert',
            index=models.Index(condition=models.Q(('cleared_at__isnull', False)), fields=['cleared_at'], name='alert_cleared'),
        ),
        migrations.AddIndex(
            model_name='alert',
            index=models.Index(fields=['raised_at'], name='alert_raised'),
        ),
        migrations.AddField(
            model_name='notificationmessage',
            name='address',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='messages', to='controlplane.notificationaddress'),
        ),
        migrations.AddField(
            model_name='notificationrule',
            name='address',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='rules', to='controlplane.notificationaddress'),
        ),
        migrations.AddField(
            model_name='notificationmessage',
            name='rule',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='messages', to='controlplane.notificationrule'),
        ),
        migrations.AddField(
            model_name='notificationevent',
            name='rule',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='events', to='controlplane.notificationrule'),
        ),
        migrations.AddConstraint(
            model_name='notificationrule',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('quiet_begin', None), ('quiet_end', None), ('quiet_zone', '')), models.Q(models.Q(('quiet_zone', ''), _negated=True), ('quiet_begin__isnull', False), ('quiet_end__isnull', False)), _connector='OR'), name='notification_rule_quiet_complete'),
        ),
        migrations.AddIndex(
            model_name='notificationmessage',
            index=models.Index(condition=models.Q(('ended_at', None)), fields=['address', 'due_at', 'id'], name='notification_message_open'),
        ),
        migrations.AddIndex(
            model_name='notificationmessage',
            index=models.Index(fields=['address', 'id'], name='notification_message_listed'),
        ),
        migrations.AddIndex(
            model_name='notificationmessage',
            index=models.Index(condition=models.Q(('ended_at__isnull', False)), fields=['ended_at'], name='notification_message_ended'),
        ),
        migrations.AddConstraint(
            model_name='notificationmessage',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('claim__isnull', False), ('state', controlplane.domain.state.states.CallbackState['CLAIMED'])), models.Q(models.Q(('state', controlplane.domain.state.states.CallbackState['CLAIMED']), _negated=True), ('claim', None)), _connector='OR'), name='notification_claimed_iff_claim'),
        ),
        migrations.AddIndex(
            model_name='notificationevent',
            index=models.Index(condition=models.Q(('sent_at', None)), fields=['rule', 'at', 'id'], name='notification_event_unsent'),
        ),
        migrations.AddIndex(
            model_name='notificationevent',
            index=models.Index(condition=models.Q(('sent_at__isnull', False)), fields=['sent_at'], name='notification_event_sent'),
        ),
        migrations.AddConstraint(
            model_name='notificationevent',
            constraint=models.UniqueConstraint(condition=models.Q(('alert_id__isnull', False)), fields=('rule', 'alert_id', 'is_resolved'), name='notification_event_once'),
        ),
    ]
