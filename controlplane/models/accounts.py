"""Credentials of Django's users: hashed tokens of the API, links to users of a provider."""

from django.conf import settings
from django.db import models

from controlplane.domain.identities import MAX_ISSUER, MAX_SUBJECT
from controlplane.domain.roles import Role


class ApiToken(models.Model):
    """One bearer token, stored as its SHA-256. `prefix` identifies it in lists."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="api_tokens"
    )
    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=12)
    digest = models.CharField(max_length=64, unique=True)
    role = models.CharField(
        max_length=16,
        choices=[(role.value, role.value) for role in Role],
        default=Role.SUBMITTER,
        help_text="The most that requests with this token may do; the user's role limits it too.",
    )
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(
        null=True, blank=True, help_text="When it was last used; updated at most once an hour."
    )

    value = ""
    """The token in clear, only in the process that has just created it."""

    class Meta:
        verbose_name = "API token"
        constraints = (
            models.UniqueConstraint(fields=("user", "name"), name="token_name_once_per_user"),
        )

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"


class OidcIdentity(models.Model):
    """The user of a provider (`issuer` and `subject`) that logs in as a user of Cellrun."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="oidc_identities"
    )
    issuer = models.CharField(max_length=MAX_ISSUER, help_text="The address of the provider.")
    subject = models.CharField(
        max_length=MAX_SUBJECT, help_text="The claim `sub` of the user at the provider."
    )
    created_at = models.DateTimeField()
    last_login_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = "OpenID identity"
        verbose_name_plural = "OpenID identities"
        constraints = (
            models.UniqueConstraint(
                fields=("issuer", "subject"), name="oidc_subject_once_per_issuer"
            ),
        )

    def __str__(self) -> str:
        return f"{self.subject} of {self.issuer}"


class TotpDevice(models.Model):
    """The second factor of a user. `sealed`: its key, sealed as secrets are."""

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="totp_device"
    )
    sealed = models.BinaryField()
    last_step = models.BigIntegerField(
        help_text="The step of time of the last accepted code: only codes of later steps are valid."
    )
    created_at = models.DateTimeField()

    class Meta:
        verbose_name = "second factor"

    def __str__(self) -> str:
        return f"second factor of {self.user}"


class RecoveryCode(models.Model):
    """An unused recovery code, stored as its SHA-256."""

    device = models.ForeignKey(TotpDevice, on_delete=models.CASCADE, related_name="recovery_codes")
    digest = models.CharField(max_length=64)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("device", "digest"), name="recovery_code_once_per_device"
            ),
        )

    def __str__(self) -> str:
        return f"recovery code {self.pk}"
