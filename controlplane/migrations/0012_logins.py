"""Add links between users of an OpenID provider and users."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = (
        ("controlplane", "0006_pool_job_limits"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    )

    operations = (
        migrations.CreateModel(
            name="OidcIdentity",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "issuer",
                    models.CharField(help_text="The address of the provider.", max_length=400),
                ),
                (
                    "subject",
                    models.CharField(
                        help_text="The claim `sub` of the user at the provider.", max_length=255
                    ),
                ),
                ("created_at", models.DateTimeField()),
                ("last_login_at", models.DateTimeField(blank=True, null=True)),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="oidc_identities",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "verbose_name": "OpenID identity",
                "verbose_name_plural": "OpenID identities",
                "constraints": [
                    models.UniqueConstraint(
                        fields=("issuer", "subject"), name="oidc_subject_once_per_issuer"
                    )
                ],
            },
        ),
    )
