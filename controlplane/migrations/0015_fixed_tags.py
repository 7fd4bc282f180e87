"""Let operators fix the tags of cells; what cells have claimed includes their tags."""

import django.contrib.postgres.fields
from django.db import migrations, models

import controlplane.models.cells

ADD_TAGS = """
UPDATE controlplane_cell SET claims = claims || jsonb_build_object('tags', to_jsonb(tags))
WHERE claims <> '{}'
"""
REMOVE_TAGS = "UPDATE controlplane_cell SET claims = claims - 'tags'"


class Migration(migrations.Migration):
    dependencies = (("controlplane", "0014_membership_messages"),)

    operations = (
        migrations.AddField(
            model_name="cell",
            name="fixed_tags",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.CharField(max_length=63),
                blank=True,
                default=controlplane.models.cells.own_tags,
                help_text="The tags that operators fix; only *: the cell chooses its tags.",
                size=None,
            ),
        ),
        migrations.AlterField(
            model_name="cell",
            name="claims",
            field=models.JSONField(
                blank=True,
                default=dict,
                help_text="pool, labels, capacity and tags as the cell reported them last;"
                " empty: never.",
            ),
        ),
        migrations.RunSQL(ADD_TAGS, REMOVE_TAGS),
    )
