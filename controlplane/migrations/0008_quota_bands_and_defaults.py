"""Add the highest band and default quotas; users and projects that exist keep all bands."""

from typing import Any

from django.db import migrations, models
from django.db.models import Q


def grant_production(apps: Any, schema_editor: Any) -> None:
    """Let existing users and projects submit in all bands, without further limits, as before."""
    quotas = apps.get_model("controlplane", "Quota").objects
    for field, model in (("user", ("auth", "User")), ("project", ("controlplane", "Project"))):
        quotas.filter(**{f"{field}__isnull": False}).update(highest_band="production")
        limited = quotas.filter(**{f"{field}__isnull": False}).values(f"{field}_id")
        owners = apps.get_model(*model).objects.exclude(pk__in=limited)
        quotas.bulk_create(
            quotas.model(**{f"{field}_id": key}, highest_band="production")
            for key in owners.order_by("pk").values_list("pk", flat=True)
        )


class Migration(migrations.Migration):
    dependencies = (("controlplane", "0007_memberships"),)

    operations = (
        migrations.RemoveConstraint(model_name="quota", name="quota_of_one_scope"),
        migrations.AddField(
            model_name="quota",
            name="default_for",
            field=models.CharField(
                blank=True,
                choices=[
                    ("user", "each user"),
                    ("project", "each project"),
                    ("domain", "each domain"),
                ],
                default="",
                help_text="Kind of the scopes without a quota of their own to which the limits"
                " apply.",
                max_length=7,
            ),
        ),
        migrations.AddField(
            model_name="quota",
            name="highest_band",
            field=models.CharField(
                blank=True,
                choices=[
                    ("production", "production"),
                    ("interactive", "interactive"),
                    ("batch", "batch"),
                ],
                default="",
                help_text="Highest band of new jobs; empty: interactive, and no limit for a"
                " domain.",
                max_length=11,
            ),
        ),
        migrations.AddConstraint(
            model_name="quota",
            constraint=models.CheckConstraint(
                condition=Q(user__isnull=False, project=None, domain=None, default_for="")
                | Q(user=None, project__isnull=False, domain=None, default_for="")
                | Q(user=None, project=None, domain__isnull=False, default_for="")
                | (Q(user=None, project=None, domain=None) & ~Q(default_for="")),
                name="quota_of_one_scope",
            ),
        ),
        migrations.AddConstraint(
            model_name="quota",
            constraint=models.UniqueConstraint(
                condition=~Q(default_for=""),
                fields=("default_for",),
                name="one_default_quota_of_each_kind",
            ),
        ),
        migrations.RunPython(grant_production, migrations.RunPython.noop),
    )
