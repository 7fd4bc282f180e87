"""Callbacks that report the ends of tasks and jobs, and their tries."""

from django.db import models
from django.db.models import Q

from controlplane.domain.state.states import CallbackState
from controlplane.models.querysets import JobPartQuerySet


class Callback(models.Model):
    """One notification that a task or, without `task`, a job has ended.

    The transaction of the end creates the row. A delivery first claims it exclusively.
    """

    job = models.ForeignKey(
        "Job",
        on_delete=models.CASCADE,
        related_name="callbacks",
        db_constraint=False,
        db_index=False,
    )
    task = models.ForeignKey(
        "Task",
        on_delete=models.CASCADE,
        related_name="callbacks",
        null=True,
        blank=True,
        db_constraint=False,
        db_index=False,
    )
    owner_id = models.BigIntegerField(help_text="Owner of the job; owners take turns.")
    url = models.TextField()
    host = models.CharField(
        max_length=260, help_text="Receiver as host:port; concurrent tries are limited for each."
    )
    state = models.CharField(
        max_length=9,
        choices=[(state.value, state.value) for state in CallbackState],
        default=CallbackState.WAITING,
    )
    tries = models.PositiveIntegerField(default=0)
    is_tried = models.BooleanField(
        default=False, help_text="Whether at least one try was completed."
    )
    due_at = models.DateTimeField(help_text="Time of the next try.")
    give_up_at = models.DateTimeField(help_text="Time after which it is not tried again.")
    claim = models.UUIDField(null=True, blank=True)
    claimed_until = models.DateTimeField(
        null=True, blank=True, help_text="Time at which a claim without a result expires."
    )
    created_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    last_error = models.TextField(default="", blank=True)

    objects = JobPartQuerySet.as_manager()

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("job", "task"), name="callback_once", nulls_distinct=False
            ),
            models.CheckConstraint(
                condition=Q(state=CallbackState.CLAIMED, claim__isnull=False)
                | (~Q(state=CallbackState.CLAIMED) & Q(claim=None)),
                name="callback_claimed_iff_claim",
            ),
            models.CheckConstraint(
                condition=Q(state__in=(CallbackState.WAITING, CallbackState.CLAIMED), ended_at=None)
                | Q(
                    state__in=(CallbackState.DELIVERED, CallbackState.ABANDONED),
                    ended_at__isnull=False,
                ),
                name="callback_ended_iff_over",
            ),
        )
        indexes = (
            models.Index(
                fields=("host", "due_at"),
                name="callback_waiting",
                condition=Q(state=CallbackState.WAITING),
            ),
            models.Index(
                fields=("host",),
                name="callback_tried",
                condition=Q(state=CallbackState.WAITING, is_tried=True),
            ),
            models.Index(
                fields=("owner_id", "due_at", "id"),
                name="callback_due",
                condition=Q(state=CallbackState.WAITING),
            ),
            models.Index(
                fields=("owner_id", "host", "due_at", "id"),
                name="callback_turns",
                condition=Q(state=CallbackState.WAITING),
            ),
            models.Index(
                fields=("claimed_until",),
                name="callback_claimed",
                condition=Q(state=CallbackState.CLAIMED),
            ),
            models.Index(
                fields=("host", "ended_at"),
                name="callback_abandoned",
                condition=Q(state=CallbackState.ABANDONED),
            ),
        )

    def __str__(self) -> str:
        return f"callback {self.pk}"


class Delivery(models.Model):
    """One try to deliver a callback."""

    callback = models.ForeignKey(
        Callback, on_delete=models.CASCADE, related_name="deliveries", db_constraint=False
    )
    number = models.PositiveIntegerField()
    began_at = models.DateTimeField()
    ended_at = models.DateTimeField()
    status = models.PositiveSmallIntegerField(
        null=True,
        blank=True,
        help_text="HTTP status of the response; empty: there was no response.",
    )
    error = models.TextField(default="", blank=True)

    class Meta:
        verbose_name_plural = "deliveries"

    def __str__(self) -> str:
        return f"try {self.number} of callback {self.callback_id}"
