"""Pools: the policy for a set of cells."""

from django.db import models


class Pool(models.Model):
    """A named set of cells and how work is given to them (Backend.AI: scaling group; Volcano:
    queue).
    """

    name = models.CharField(max_length=63, unique=True)
    pending_timeout_seconds = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="Default scheduling timeout of jobs in this pool; empty: none.",
    )
    pull_timeout_seconds = models.PositiveIntegerField(
        default=1800, help_text="An image pull that takes longer is a system failure."
    )
    create_timeout_seconds = models.PositiveIntegerField(
        default=300,
        help_text="Preparing and creating a container that takes longer is a system failure.",
    )

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name
