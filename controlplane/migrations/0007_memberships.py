"""Add roles on projects and domains, service accounts, and tokens that are bound to projects.

Present users become submitters of the domain `default`, and of all other projects in which they
have jobs. Guids of one-off tasks become unique in the project.
"""

from typing import Any

import django.contrib.postgres.fields
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models
from django.utils import timezone


def make_members(apps: Any, schema_editor: Any) -> None:
    """Give present users the role submitter where they worked so far."""
    memberships = apps.get_model("controlplane", "Membership").objects
    domain = apps.get_model("controlplane", "Domain").objects.filter(name="default").first()
    projects = apps.get_model("controlplane", "Project").objects
    made = {"role": "submitter", "created_at": timezone.now()}
    users = apps.get_model("auth", "User").objects.filter(is_superuser=False)
    for user in users.order_by("pk"):
        if domain is not None:
            memberships.create(user=user, domain=domain, **made)
        used = projects.filter(jobs__owner=user).exclude(domain=domain).distinct()
        for project in used:
            memberships.create(user=user, project=project, **made)


class Migration(migrations.Migration):
    """Memberships: from one shared installation to projects with members."""

    dependencies = (
        ("auth", "0012_alter_user_first_name_max_length"),
        ("controlplane", "0006_pool_job_limits"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    )

    operations = (
        migrations.AddField(
            "project",
            "archived_at",
            models.DateTimeField(
                blank=True, help_text="Since when it accepts no new jobs and secrets.", null=True
            ),
        ),
        migrations.AddIndex(
            "job", models.Index(fields=["project", "-id"], name="job_project_newest")
        ),
        migrations.AlterField(
            "job",
            "project",
            models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="jobs",
                to="controlplane.project",
            ),
        ),
        migrations.CreateModel(
            "Membership",
            (
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "role",
                    models.CharField(
                        choices=[
                            ("viewer", "viewer"),
                            ("submitter", "submitter"),
                            ("manager", "manager"),
                            ("auditor", "auditor"),
                        ],
                        max_length=16,
                    ),
                ),
                ("created_at", models.DateTimeField()),
                (
                    "user",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="memberships",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "group",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="memberships",
                        to="auth.group",
                    ),
                ),
                (
                    "domain",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="memberships",
                        to="controlplane.domain",
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="memberships",
                        to="controlplane.project",
                    ),
                ),
            ),
            options={
                "constraints": (
                    models.CheckConstraint(
                        condition=models.Q(("user", None), ("group", None), _connector="XOR"),
                        name="membership_of_user_or_group",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("domain", None), ("project", None), ("role", "auditor")),
                            models.Q(
                                models.Q(("role", "auditor"), _negated=True),
                                models.Q(("domain", None), ("project", None), _connector="XOR"),
                            ),
                            _connector="OR",
                        ),
                        name="membership_on_one_scope",
                    ),
                    models.UniqueConstraint(
                        fields=("user", "group", "domain", "project"),
                        nulls_distinct=False,
                        name="membership_once_per_scope",
                    ),
                )
            },
        ),
        migrations.CreateModel(
            "ServiceAccount",
            (
                (
                    "user",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="service_account",
                        serialize=False,
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="service_accounts",
                        to="controlplane.project",
                    ),
                ),
                ("created_at", models.DateTimeField()),
            ),
        ),
        migrations.AddField(
            "apitoken",
            "bound_to",
            django.contrib.postgres.fields.ArrayField(
                base_field=models.BigIntegerField(),
                blank=True,
                help_text="Ids of the projects that the token is limited to; empty: all of the"
                " user.",
                null=True,
                size=None,
            ),
        ),
        migrations.AlterField(
            "apitoken",
            "role",
            models.CharField(
                choices=[
                    ("viewer", "viewer"),
                    ("submitter", "submitter"),
                    ("manager", "manager"),
                    ("operator", "operator"),
                ],
                default="submitter",
                help_text="The most that requests with this token may do; the user's role limits"
                " it too.",
                max_length=16,
            ),
        ),
        migrations.AddField(
            "oneoff",
            "project",
            models.ForeignKey(
                db_constraint=False,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="controlplane.project",
            ),
        ),
        migrations.RunSQL(
            "UPDATE controlplane_oneoff o SET project_id = j.project_id"
            " FROM controlplane_job j WHERE j.id = o.job_id",
            migrations.RunSQL.noop,
            elidable=True,
        ),
        migrations.AlterField(
            "oneoff",
            "project",
            models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="controlplane.project",
            ),
        ),
        migrations.AlterField(
            "oneoff", "guid", models.CharField(help_text="Unique in the project.", max_length=255)
        ),
        migrations.AddConstraint(
            "oneoff",
            models.UniqueConstraint(fields=("guid", "project"), name="one_off_guid_in_project"),
        ),
        migrations.RunPython(make_members, migrations.RunPython.noop, elidable=True),
    )
