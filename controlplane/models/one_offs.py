"""One-off tasks, submitted through Diego's interface, until they are deleted."""

from django.db import models


class OneOff(models.Model):
    """A one-off task and its guid. The holder of `claim` resolves the task exclusively.

    The deletion of the task deletes this row, which frees the guid, and hides the job.
    """

    task = models.OneToOneField(
        "Task",
        on_delete=models.CASCADE,
        primary_key=True,
        related_name="one_off",
        db_constraint=False,
    )
    job = models.OneToOneField(
        "Job", on_delete=models.CASCADE, related_name="one_off", db_constraint=False
    )
    project = models.ForeignKey(
        "Project", on_delete=models.PROTECT, related_name="+", db_index=False, db_constraint=False
    )
    guid = models.CharField(max_length=255, help_text="Unique in the project.")
    domain = models.CharField(max_length=255, help_text="A label that the client chose.")
    claim = models.UUIDField(null=True, blank=True)
    claimed_at = models.DateTimeField(null=True, blank=True)
    claim_ended_at = models.DateTimeField(
        null=True, blank=True, help_text="When its last claim expired without a deletion."
    )
    claimed_by = models.CharField(max_length=150, default="", blank=True)

    class Meta:
        verbose_name = "one-off task"
        constraints = (
            models.CheckConstraint(
                condition=models.Q(claim=None, claimed_at=None)
                | models.Q(claim__isnull=False, claimed_at__isnull=False),
                name="one_off_claimed_with_instant",
            ),
            models.UniqueConstraint(fields=("guid", "project"), name="one_off_guid_in_project"),
        )
        indexes = (
            models.Index(
                fields=("claimed_at",),
                name="one_off_resolving",
                condition=models.Q(claim__isnull=False),
            ),
            models.Index(fields=("domain", "-task"), name="one_off_of_domain"),
        )

    def __str__(self) -> str:
        return self.guid
