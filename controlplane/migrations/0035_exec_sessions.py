"""Add sessions of users in running attempts, and whether a pool allows them."""

import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = (('controlplane', '0034_grown_requests'),)

    operations = (
        migrations.AddField(
            model_name='pool',
            name='exec_allowed',
            field=models.BooleanField(default=True, help_text='Whether users may run programs inside running tasks (cellrun exec).'),
        ),
        migrations.CreateModel(
            name='ExecSession',
            fields=[
                ('uid', models.UUIDField(primary_key=True, serialize=False)),
                ('number', models.PositiveIntegerField(help_text='In its attempt, from 1.')),
                ('command', django.contrib.postgres.fields.ArrayField(base_field=models.TextField(), size=None)),
                ('tty', models.BooleanField(default=False)),
                ('stdin', models.BooleanField(default=False)),
                ('rows', models.PositiveIntegerField(default=0, help_text='Of the terminal at the beginning; 0: not known.')),
                ('columns', models.PositiveIntegerField(default=0)),
                ('actor', models.CharField(help_text='Name of the user.', max_length=150)),
                ('token', models.CharField(blank=True, default='', help_text='Name of the token.', max_length=100)),
                ('state', models.PositiveSmallIntegerField(choices=[(1, 'REQUESTED'), (2, 'OPEN'), (3, 'ENDED')], default=1)),
                ('cell_nonce', models.CharField(blank=True, default='', help_text='Of the process that claimed the session.', max_length=64)),
                ('requested_at', models.DateTimeField()),
                ('opened_at', models.DateTimeField(blank=True, null=True)),
                ('client_seen_at', models.DateTimeField(help_text='When the client was last connected.')),
                ('cell_seen_at', models.DateTimeField(blank=True, help_text='When the cell was last connected.', null=True)),
                ('ended_at', models.DateTimeField(blank=True, null=True)),
                ('exit_code', models.IntegerField(blank=True, null=True)),
                ('reason', models.TextField(blank=True, default='', help_text='Why it ended, unless its program did.')),
                ('attempt', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='exec_sessions', to='controlplane.attempt')),
            ],
            options={
                'verbose_name': 'exec session',
                'indexes': [models.Index(condition=models.Q(('ended_at', None)), fields=['attempt', 'actor'], name='exec_session_unended')],
                'constraints': [models.UniqueConstraint(fields=('attempt', 'number'), name='exec_session_number_in_attempt'), models.CheckConstraint(condition=models.Q(models.Q(('ended_at__isnull', False), ('state', 3)), models.Q(('ended_at', None), ('state__in', [1, 2])), _connector='OR'), name='exec_session_ended_with_instant'), models.CheckConstraint(condition=models.Q(models.Q(('state', 2), _negated=True), models.Q(('cell_seen_at__isnull', False), ('opened_at__isnull', False)), _connector='OR'), name='exec_session_open_with_instants')],
            },
        ),
    )
