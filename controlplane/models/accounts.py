"""Roles of users and groups, service accounts, tokens of the API, and logins of providers."""

from collections.abc import Sequence

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from controlplane.domain.identities import MAX_ISSUER, MAX_SUBJECT
from controlplane.domain.roles import AUDITOR, PROJECT_ROLES, Role


class Membership(models.Model):
    """The role of a user or group on a project or on all projects of a domain.

    Without project and domain, the member audits the installation.
    """

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="memberships",
    )
    group = models.ForeignKey(
        "auth.Group", on_delete=models.CASCADE, null=True, blank=True, related_name="memberships"
    )
    domain = models.ForeignKey(
        "Domain", on_delete=models.CASCADE, null=True, blank=True, related_name="memberships"
    )
    project = models.ForeignKey(
        "Project", on_delete=models.CASCADE, null=True, blank=True, related_name="memberships"
    )
    role = models.CharField(
        max_length=16, choices=[(role, role) for role in (*map(str, PROJECT_ROLES), AUDITOR)]
    )
    created_at = models.DateTimeField()

    class Meta:
        constraints = (
            models.CheckConstraint(
                condition=Q(user=None) ^ Q(group=None),
                name="membership_of_user_or_group",
                violation_error_message="Choose a user or a group, and not both.",
            ),
            models.CheckConstraint(
                condition=Q(role=AUDITOR, domain=None, project=None)
                | (~Q(role=AUDITOR) & (Q(domain=None) ^ Q(project=None))),
                name="membership_on_one_scope",
                violation_error_message="Choose a project or a domain, and not both; for an"
                " auditor neither.",
            ),
            models.UniqueConstraint(
                fields=("user", "group", "domain", "project"),
                nulls_distinct=False,
                name="membership_once_per_scope",
                violation_error_message="This member has a role there already: change that role.",
            ),
        )

    def __str__(self) -> str:
        scope = self.project or self.domain or "the installation"
        return f"role {self.role} of {self.user or self.group} on {scope}"


class ServiceAccount(models.Model):
    """A user for a machine, without a password. The managers of `project` control its tokens."""

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL,
        on_delete=models.CASCADE,
        primary_key=True,
        related_name="service_account",
    )
    project = models.ForeignKey(
        "Project", on_delete=models.PROTECT, related_name="service_accounts"
    )
    created_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.user.get_username()


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
    bound_to = ArrayField(
        models.BigIntegerField(),
        null=True,
        blank=True,
        help_text="Ids of the projects that the token is limited to; empty: all of the user.",
    )
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(
        null=True, blank=True, help_text="When it was last used; updated at most once an hour."
    )

    value = ""
    """The token in clear, only in the process that has just created it."""

    projects: Sequence[str] | None = None
    """The names of the projects in `bound_to`, if the row was loaded with them."""

    hidden_projects = 0
    """How many more projects are in `bound_to`, whose names the reader may not know."""

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
