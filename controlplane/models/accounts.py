"""Credentials of the API: hashed tokens of Django's users."""

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models


class ApiToken(models.Model):
    """One bearer token, stored as its SHA-256. `prefix` identifies it in lists."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="api_tokens"
    )
    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=12)
    digest = models.CharField(max_length=64, unique=True)
    scopes = ArrayField(models.CharField(max_length=20), default=list)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = "API token"

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"
