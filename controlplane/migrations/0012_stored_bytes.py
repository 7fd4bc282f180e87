"""Add a limit of the bytes that the store has for a project, and the sizes that it counts.

The stored artifacts of present attempts are counted from their rows. Their output and the inputs of
present jobs have no size in a row, and are not counted until they are deleted with their jobs.
"""

import django.core.validators
import django.db.models.deletion
from django.db import migrations, models
from django.db.models import Q

# An earlier version accepted any size from a cell: the sums must fit into their columns.
_SIZE = "least(greatest((item.output ->> 'size')::numeric, 0), 1125899906842624)::bigint"
# The artifacts of a deleted attempt may belong to an entry of the cache.
_COUNT_PRESENT = f"""
INSERT INTO controlplane_storedsize
    (job_id, attempt_uid, project_id, file_bytes, stdout_bytes, stderr_bytes, counted_bytes,
     is_uncounted)
SELECT a.job_id, a.uid, j.project_id, sum({_SIZE}), 0, 0, sum({_SIZE}), false
FROM controlplane_attempt a
JOIN controlplane_job j ON j.id = a.job_id,
     jsonb_array_elements(
         CASE WHEN jsonb_typeof(a.details -> 'outputs') = 'array' THEN a.details -> 'outputs' END
     ) AS item (output)
WHERE item.output ->> 'uri' LIKE '/api/v1/%'
GROUP BY a.job_id, a.uid, j.project_id
UNION ALL
SELECT min(e.job_id), e.attempt_uid, min(e.project_id), max(e.size_bytes), 0, 0, max(e.size_bytes), false
FROM controlplane_cacheentry e
WHERE NOT EXISTS (SELECT FROM controlplane_attempt a WHERE a.uid = e.attempt_uid)
GROUP BY e.attempt_uid
"""
_ADD_UP = """
INSERT INTO controlplane_storedtotal (project_id, total_bytes)
SELECT project_id, least(sum(counted_bytes), 4611686018427387904)::bigint
FROM controlplane_storedsize GROUP BY project_id
"""


class Migration(migrations.Migration):
    dependencies = (("controlplane", "0011_cell_secret_key_id"),)

    operations = (
        migrations.CreateModel(
            name="StoredSize",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("job_id", models.BigIntegerField()),
                ("attempt_uid", models.UUIDField(blank=True, null=True, unique=True)),
                (
                    "project",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="controlplane.project",
                    ),
                ),
                (
                    "file_bytes",
                    models.BigIntegerField(
                        default=0,
                        help_text="Artifacts and checkpoint, also unfinished ones; inputs of a"
                        " job.",
                    ),
                ),
                ("stdout_bytes", models.BigIntegerField(default=0)),
                ("stderr_bytes", models.BigIntegerField(default=0)),
                (
                    "counted_bytes",
                    models.BigIntegerField(
                        default=0, help_text="The part that the total of the project contains."
                    ),
                ),
                (
                    "is_uncounted",
                    models.BooleanField(
                        default=True, help_text="Whether it has changed since it was last counted."
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="StoredTotal",
            fields=[
                (
                    "project",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="stored_total",
                        serialize=False,
                        to="controlplane.project",
                    ),
                ),
                ("total_bytes", models.BigIntegerField(default=0)),
            ],
        ),
        migrations.AddIndex(
            model_name="storedsize",
            index=models.Index(
                condition=Q(is_uncounted=True),
                fields=("project", "id"),
                name="stored_size_uncounted",
            ),
        ),
        migrations.AddConstraint(
            model_name="storedsize",
            constraint=models.UniqueConstraint(
                condition=Q(attempt_uid=None),
                fields=("job_id",),
                name="stored_size_of_inputs_once_per_job",
            ),
        ),
        migrations.RunSQL([_COUNT_PRESENT, _ADD_UP], migrations.RunSQL.noop),
        # Last, because the old control plane waits for the quotas until the migration has ended.
        migrations.AddField(
            model_name="quota",
            name="stored_bytes",
            field=models.BigIntegerField(
                blank=True,
                help_text="Maximum of the bytes that the store has for a project.",
                null=True,
                validators=[django.core.validators.MinValueValidator(0)],
            ),
        ),
        migrations.AddConstraint(
            model_name="quota",
            constraint=models.CheckConstraint(
                condition=Q(stored_bytes=None)
                | (
                    Q(stored_bytes__gte=0) & (Q(project__isnull=False) | Q(default_for="project"))
                ),
                name="quota_of_stored_bytes_of_projects",
            ),
        ),
    )
