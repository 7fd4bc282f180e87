"""The append-only history: one row per change of a task and its attempt, or of a job."""

from django.db import models

from controlplane.models.choices import TASK_STATES


class Transition(models.Model):
    """One change of state. Within a job, ids are in the order of commits."""

    id = models.BigAutoField(primary_key=True)
    job_id = models.BigIntegerField()
    task_id = models.BigIntegerField(
        null=True, blank=True, help_text="Empty for a change of the job itself."
    )
    attempt_uid = models.UUIDField(null=True, blank=True)
    from_state = models.PositiveSmallIntegerField(choices=TASK_STATES, null=True, blank=True)
    to_state = models.PositiveSmallIntegerField(choices=TASK_STATES, null=True, blank=True)
    attempt_state = models.PositiveSmallIntegerField(choices=TASK_STATES, null=True, blank=True)
    reason = models.CharField(max_length=32)
    message = models.TextField(default="", blank=True)
    actor = models.CharField(max_length=150, default="", blank=True)
    at = models.DateTimeField()

    class Meta:
        indexes = (
            models.Index(fields=("job_id", "id"), name="transition_of_job"),
            models.Index(fields=("task_id", "id"), name="transition_of_task"),
        )

    def __str__(self) -> str:
        return f"transition {self.pk}"
