"""Callbacks to programs and notifications to people, with their tries."""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from controlplane.domain.state.states import CallbackState, NotifyAbout
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


class NotificationAddress(models.Model):
    """Where messages to people go. Only `queries.notifications` opens `sealed`."""

    name = models.CharField(max_length=63, unique=True)
    sealed = models.BinaryField(help_text="The URL of Apprise, which contains secrets.")
    masked = models.CharField(max_length=63, help_text="The scheme of the URL.")
    service = models.CharField(max_length=100, help_text="The service that the URL names.")
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()

    class Meta:
        ordering = ("name",)
        verbose_name_plural = "notification addresses"

    def __str__(self) -> str:
        return self.name


class NotificationRule(models.Model):
    """The events that are reported to an address, and when. Empty selections select all."""

    name = models.CharField(max_length=63, unique=True)
    address = models.ForeignKey(NotificationAddress, on_delete=models.CASCADE, related_name="rules")
    is_enabled = models.BooleanField(default=True)
    about = models.CharField(
        max_length=6,
        choices=[(it.value, it.value) for it in NotifyAbout],
        help_text="Alerts, or ends of jobs.",
    )
    kinds = ArrayField(
        models.CharField(max_length=63), default=list, blank=True, help_text="Of alerts."
    )
    only_critical = models.BooleanField(default=False, help_text="Only critical alerts.")
    projects = ArrayField(
        models.CharField(max_length=127),
        default=list,
        blank=True,
        help_text="Of ended jobs, as domain/project.",
    )
    states = ArrayField(
        models.PositiveSmallIntegerField(),
        default=list,
        blank=True,
        help_text="Final states of jobs.",
    )
    name_pattern = models.CharField(
        max_length=100, default="", blank=True, help_text="Of names of jobs, such as nightly-*."
    )
    label = models.CharField(
        max_length=63, default="", blank=True, help_text="Value of the label notify of jobs."
    )
    group_wait_seconds = models.PositiveIntegerField(
        default=30, help_text="From the first event to its message."
    )
    group_interval_seconds = models.PositiveIntegerField(
        default=300, help_text="Between two messages, at least."
    )
    quiet_zone = models.CharField(
        max_length=63, default="", blank=True, help_text="Time zone; empty: no quiet hours."
    )
    quiet_begin = models.TimeField(null=True, blank=True)
    quiet_end = models.TimeField(null=True, blank=True)
    quiet_weekdays = ArrayField(
        models.PositiveSmallIntegerField(),
        default=list,
        blank=True,
        help_text="Days on which quiet hours begin, Monday is 0; empty: all.",
    )
    critical_passes = models.BooleanField(
        default=True, help_text="Whether critical alerts are sent in quiet hours."
    )
    since = models.DateTimeField(help_text="Events before it are not reported.")
    last_at = models.DateTimeField(
        null=True, blank=True, help_text="When its last message was composed."
    )
    uncounted = models.PositiveIntegerField(
        default=0, help_text="Unsent events beyond the stored ones, which the next message counts."
    )
    created_at = models.DateTimeField()

    class Meta:
        ordering = ("name",)
        constraints = (
            models.CheckConstraint(
                condition=Q(quiet_zone="", quiet_begin=None, quiet_end=None)
                | (~Q(quiet_zone="") & Q(quiet_begin__isnull=False, quiet_end__isnull=False)),
                name="notification_rule_quiet_complete",
            ),
        )

    def __str__(self) -> str:
        return self.name


class JobEnd(models.Model):
    """A job that ended, until the tick of notifications has compared it with the rules.

    The transaction of the end creates the row, if a rule is about jobs.
    """

    job_id = models.BigIntegerField(unique=True)
    at = models.DateTimeField()

    def __str__(self) -> str:
        return f"end of job {self.job_id}"


class NotificationEvent(models.Model):
    """An event that a rule selects. That of a job is deleted when a message reports it.

    That of an alert remains, so that the alert is reported once.
    """

    rule = models.ForeignKey(
        NotificationRule, on_delete=models.CASCADE, related_name="events", db_index=False
    )
    alert_id = models.BigIntegerField(null=True, blank=True)
    job_id = models.BigIntegerField(null=True, blank=True)
    is_resolved = models.BooleanField(default=False, help_text="Whether the alert was closed.")
    is_critical = models.BooleanField(default=False)
    at = models.DateTimeField()
    line = models.TextField()
    sent_at = models.DateTimeField(
        null=True, blank=True, help_text="When a message was composed that reports it."
    )

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("rule", "alert_id", "is_resolved"),
                name="notification_event_once",
                condition=Q(alert_id__isnull=False),
            ),
        )
        indexes = (
            models.Index(
                fields=("rule", "at", "id"),
                name="notification_event_unsent",
                condition=Q(sent_at=None),
            ),
            models.Index(
                fields=("sent_at",),
                name="notification_event_sent",
                condition=Q(sent_at__isnull=False),
            ),
        )

    def __str__(self) -> str:
        return self.line


class NotificationMessage(models.Model):
    """A message to an address: the events of a window of a rule, or a test without a rule."""

    address = models.ForeignKey(
        NotificationAddress,
        on_delete=models.CASCADE,
        related_name="messages",
        db_index=False,
    )
    rule = models.ForeignKey(
        NotificationRule,
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="messages",
        db_index=False,
    )
    is_test = models.BooleanField(default=False, help_text="A test has no rule and one try.")
    title = models.TextField()
    body = models.TextField()
    state = models.CharField(
        max_length=9,
        choices=[(state.value, state.value) for state in CallbackState],
        default=CallbackState.WAITING,
    )
    tries = models.PositiveIntegerField(default=0)
    due_at = models.DateTimeField(help_text="Time of the next try.")
    give_up_at = models.DateTimeField(help_text="Time after which it is not tried again.")
    claim = models.UUIDField(null=True, blank=True)
    claimed_until = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    last_error = models.TextField(default="", blank=True)

    class Meta:
        constraints = (
            models.CheckConstraint(
                condition=Q(state=CallbackState.CLAIMED, claim__isnull=False)
                | (~Q(state=CallbackState.CLAIMED) & Q(claim=None)),
                name="notification_claimed_iff_claim",
            ),
        )
        indexes = (
            models.Index(
                fields=("address", "due_at", "id"),
                name="notification_message_open",
                condition=Q(ended_at=None),
            ),
            models.Index(fields=("address", "id"), name="notification_message_listed"),
            models.Index(fields=("rule", "id"), name="notification_message_of_rule"),
            models.Index(
                fields=("ended_at",),
                name="notification_message_ended",
                condition=Q(ended_at__isnull=False),
            ),
        )

    def __str__(self) -> str:
        return f"notification {self.pk}"
