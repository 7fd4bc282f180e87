"""Secrets of projects, stored encrypted; no page or response contains a value."""

from django.conf import settings
from django.db import models


class Secret(models.Model):
    """A named value that tasks of a project may use. Only `domain.cells.sealing` reads `sealed`."""

    project = models.ForeignKey("Project", on_delete=models.CASCADE, related_name="secrets")
    name = models.CharField(max_length=63)
    sealed = models.BinaryField()
    size = models.PositiveIntegerField(help_text="Size of the value in bytes.")
    version = models.PositiveIntegerField(
        default=1, help_text="How many times the value was written."
    )
    registry_server = models.CharField(
        max_length=255,
        default="",
        db_default="",
        blank=True,
        help_text="Registry of the login in the value; empty: it is none, or an earlier version"
        " wrote it without a server.",
    )
    written_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, related_name="+"
    )
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()

    class Meta:
        ordering = ("name",)
        constraints = (
            models.UniqueConstraint(
                fields=("project", "name"), name="secret_name_unique_in_project"
            ),
        )

    def __str__(self) -> str:
        return self.name
