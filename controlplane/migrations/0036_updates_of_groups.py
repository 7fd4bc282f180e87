"""Update groups in place: space in their pages, and no index that repeats another one."""

import django.db.models.deletion
from django.db import migrations, models

# The counts of a group change with each state of its tasks, and are in no index. With space for a
# second version in the page, PostgreSQL updates no index, and reuses the space of older versions.
_SPACE = "ALTER TABLE controlplane_taskgroup SET (fillfactor = 50)"
_NO_SPACE = "ALTER TABLE controlplane_taskgroup RESET (fillfactor)"


class Migration(migrations.Migration):

    dependencies = (('controlplane', '0035_exec_sessions'),)

    operations = (
        migrations.AlterField(
            model_name='taskgroup',
            name='job',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='groups', to='controlplane.job'),
        ),
        migrations.RunSQL(_SPACE, _NO_SPACE),
    )
