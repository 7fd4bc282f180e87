"""Add retry rules of groups, and the number of the rule that decided on the end of an attempt."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = (('controlplane', '0029_usage_totals'),)

    operations = (
        migrations.AddField(
            model_name='attempt',
            name='retry_rule',
            field=models.PositiveSmallIntegerField(blank=True, help_text='Number of the retry rule of its group that decided on its end, from 1.', null=True),
        ),
        migrations.AddField(
            model_name='taskgroup',
            name='retry_rules',
            field=models.JSONField(blank=True, help_text='The retry rules of its tasks (`on_exit`); empty: it has none.', null=True),
        ),
    )
