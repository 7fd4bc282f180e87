"""Due calls of hooks: a row exists from the event until the hook has returned."""

from django.db import models

from controlplane.domain.hooks.interface import HookEvent


class HookCall(models.Model):
    """A call of a job kind's hook for an event of an attempt.

    The transaction of the event creates the row if the kind has the hook. Its links have no
    constraint: a row whose job is gone is dropped at its turn.
    """

    kind = models.CharField(max_length=63)
    moment = models.CharField(max_length=7, choices=[(at.value, at.value) for at in HookEvent])
    job_id = models.BigIntegerField()
    attempt_uid = models.UUIDField()
    at = models.DateTimeField()
    claimed_until = models.DateTimeField(
        null=True,
        blank=True,
        help_text="A process runs the call until then; later another process may.",
    )

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("attempt_uid", "moment"), name="hook_call_once"),
        )

    def __str__(self) -> str:
        return f"{self.moment} of attempt {self.attempt_uid}"
