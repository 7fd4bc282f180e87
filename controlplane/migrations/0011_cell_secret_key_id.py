"""Record from which CELLRUN_SECRET_KEY the key of each cell is derived."""

from django.apps.registry import Apps
from django.conf import settings
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

from controlplane.domain.cells.keys import key_id


def record_present_key(apps: Apps, _: BaseDatabaseSchemaEditor) -> None:
    """Before this migration all keys of cells were derived from the present one."""
    cells = apps.get_model("controlplane", "Cell").objects
    cells.filter(secret_key_id="").update(secret_key_id=key_id(settings.SECRET_KEY))


class Migration(migrations.Migration):
    dependencies = (("controlplane", "0010_audit_log"),)

    operations = (
        migrations.AddField(
            model_name="cell",
            name="secret_key_id",
            field=models.CharField(
                blank=True,
                default="",
                help_text="Id of the CELLRUN_SECRET_KEY from which the key of the cell is derived.",
                max_length=16,
            ),
        ),
        migrations.RunPython(record_present_key, migrations.RunPython.noop),
    )
