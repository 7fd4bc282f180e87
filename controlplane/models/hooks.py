"""Calls of hooks that are due: one row from the change until the job's kind has answered."""

from django.db import models

from controlplane.domain.hooks.interface import HookEvent


class HookCall(models.Model):
    """The kind of a job is to be called about an attempt.

    Written by the change that it is about, for kinds that want the call. Its links carry no
    constraint: a row whose job is gone is dropped when it is its turn.
    """

    kind = models.CharField(max_length=63)
    moment = models.CharField(max_length=7, choices=[(at.value, at.value) for at in HookEvent])
    job_id = models.BigIntegerField()
    attempt_uid = models.UUIDField()
    at = models.DateTimeField()
    claimed_until = models.DateTimeField(
        null=True, blank=True, help_text="A process calls it. From then on another one does."
    )

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("attempt_uid", "moment"), name="hook_call_once"),
        )

    def __str__(self) -> str:
        return f"{self.moment} of attempt {self.attempt_uid}"
