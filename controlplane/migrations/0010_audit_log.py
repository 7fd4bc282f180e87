"""Give audit lines an origin, a project, and values before and after; make them append-only."""

import django.db.models.deletion
from django.db import migrations, models

# The actions of earlier versions, by the first words of their subjects.
_NAMES = """
UPDATE controlplane_auditline SET action = CASE
    WHEN action = 'deleted' AND subject LIKE 'task %' THEN 'delete.task'
    WHEN action = 'deleted' THEN 'delete.job'
    WHEN action = 'closed' THEN 'close.alert'
    WHEN action = 'evicted' THEN 'evict.cache_entry'
    WHEN action = 'repeated' THEN 'repeat.callback'
    WHEN action = 'confirmed' THEN 'confirm.loss'
    WHEN action = 'created' AND subject LIKE 'token %' THEN 'create.token'
    WHEN action = 'created' THEN 'create.user'
    WHEN action IN ('activated', 'deactivated') THEN 'change.user'
    WHEN action = 'revoked' AND subject LIKE 'token %' THEN 'revoke.token'
    WHEN action = 'revoked' THEN 'revoke.cell_key'
    WHEN action = 'renewed' THEN 'renew.cell_key'
    WHEN action = 'changed' THEN 'change.cell'
    WHEN action = 'logged in' THEN 'log_in.user'
    WHEN action = 'login failed' THEN 'refuse.login'
    ELSE action END,
    text = concat_ws('; ', CASE WHEN action IN ('activated', 'deactivated') THEN action END,
                     nullif(text, ''))
"""

# Only retention deletes lines: it sets cellrun.retention for its transaction.
_TRIGGER = """
CREATE FUNCTION controlplane_keep_auditline() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND current_setting('cellrun.retention', true) = 'on' THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'the audit log is append-only: % of line %', TG_OP, OLD.id
        USING ERRCODE = 'insufficient_privilege';
END $$;
CREATE TRIGGER keep_auditline BEFORE UPDATE OR DELETE ON controlplane_auditline
FOR EACH ROW EXECUTE FUNCTION controlplane_keep_auditline();
"""

_NO_TRIGGER = """
DROP TRIGGER keep_auditline ON controlplane_auditline;
DROP FUNCTION controlplane_keep_auditline();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("controlplane", "0009_logins"),
    ]

    operations = [
        migrations.RunSQL(_NAMES, migrations.RunSQL.noop),
        migrations.AddField(
            model_name='auditline',
            name='address',
            field=models.CharField(blank=True, default='', help_text='Address of the caller, if it is known.', max_length=45),
        ),
        migrations.AddField(
            model_name='auditline',
            name='after',
            field=models.JSONField(blank=True, help_text='Changed fields, as they are now.', null=True),
        ),
        migrations.AddField(
            model_name='auditline',
            name='before',
            field=models.JSONField(blank=True, help_text='Changed fields, as they were.', null=True),
        ),
        migrations.AddField(
            model_name='auditline',
            name='domain',
            field=models.ForeignKey(blank=True, db_constraint=False, db_index=False, help_text='Of a line about a domain; the domain of another line is that of its project.', null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='controlplane.domain'),
        ),
        migrations.AddField(
            model_name='auditline',
            name='project',
            field=models.ForeignKey(blank=True, db_constraint=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='controlplane.project'),
        ),
        migrations.AddField(
            model_name='auditline',
            name='request_id',
            field=models.CharField(blank=True, default='', help_text='X-Request-Id of the request.', max_length=64),
        ),
        migrations.AddField(
            model_name='auditline',
            name='token',
            field=models.CharField(blank=True, default='', help_text='Name of the token of the request.', max_length=100),
        ),
        migrations.AddField(
            model_name='auditline',
            name='via',
            field=models.CharField(blank=True, default='', help_text='token, session, command, cell or system.', max_length=16),
        ),
        migrations.AddField(
            model_name='auditline',
            name='xid',
            field=models.BigIntegerField(db_default=0, default=0, help_text='Number of the transaction that wrote the line.'),
        ),
        migrations.AlterField(
            model_name='auditline',
            name='action',
            field=models.CharField(help_text='Verb and noun, such as cancel.job.', max_length=32),
        ),
        migrations.AlterField(
            model_name='auditline',
            name='actor',
            field=models.CharField(help_text='Name of the user, or of the component.', max_length=150),
        ),
        migrations.AlterField(
            model_name='auditline',
            name='text',
            field=models.TextField(blank=True, default='', help_text='A reason or a description.'),
        ),
        migrations.AddIndex(
            model_name='auditline',
            index=models.Index(fields=['actor', 'id'], name='audit_line_actor'),
        ),
        migrations.AddIndex(
            model_name='auditline',
            index=models.Index(fields=['action', 'id'], name='audit_line_action'),
        ),
        migrations.AddIndex(
            model_name='auditline',
            index=models.Index(fields=['subject', 'id'], name='audit_line_subject'),
        ),
        migrations.RunSQL(_TRIGGER, _NO_TRIGGER),
    ]
