"""Add links between users of an OpenID provider and users, and second factors."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = (
        ("controlplane", "0008_quota_bands_and_defaults"),
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
        migrations.CreateModel(
            name="TotpDevice",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("sealed", models.BinaryField()),
                (
                    "last_step",
                    models.BigIntegerField(
                        help_text="The step of time of the last accepted code: only codes of later"
                        " steps are valid."
                    ),
                ),
                ("created_at", models.DateTimeField()),
                (
                    "user",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="totp_device",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={"verbose_name": "second factor"},
        ),
        migrations.CreateModel(
            name="RecoveryCode",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("digest", models.CharField(max_length=64)),
                (
                    "device",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="recovery_codes",
                        to="controlplane.totpdevice",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("device", "digest"), name="recovery_code_once_per_device"
                    )
                ],
            },
        ),
    )
