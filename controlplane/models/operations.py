"""The state of the control plane itself: ticks, inbox probes, dead letters, alerts, operations."""

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models

from controlplane.domain.jobs.bulk import BulkAction, BulkState
from controlplane.domain.schedules.calendar import MAX_CRON, MAX_ZONE
from controlplane.domain.schedules.firing import CatchUp, Outcome, Overlap


class TickState(models.Model):
    """The last run of each tick. `mark` counts wakes during a run, after which the tick reruns."""

    name = models.CharField(max_length=32, primary_key=True)
    mark = models.BigIntegerField(default=0)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    covered_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="Start of the last pass, which considered all pending tasks except in"
        " pools with `uncovered_since`.",
    )
    hold_until = models.DateTimeField(
        null=True,
        blank=True,
        help_text="Until when nothing is declared lost or overdue after a gap of the"
        " control plane.",
    )
    counts = models.JSONField(
        default=dict, blank=True, help_text="Results of the last run: counts by name."
    )
    phases = models.JSONField(
        default=dict, blank=True, help_text="Milliseconds of each phase of the last run."
    )
    lag_seconds = models.FloatField(
        default=0.0, help_text="Seconds by which the last run began late."
    )

    def __str__(self) -> str:
        return self.name


class TickRun(models.Model):
    """A run of a tick that changed something or was late; kept for a day."""

    name = models.CharField(max_length=32)
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField()
    counts = models.JSONField(default=dict)
    phases = models.JSONField(default=dict)
    lag_seconds = models.FloatField(default=0.0)

    class Meta:
        indexes = (models.Index(fields=("finished_at",), name="tick_run_finished"),)

    def __str__(self) -> str:
        return f"run {self.pk} of {self.name}"


class PoolSample(models.Model):
    """Figures of a pool at an instant, taken every 15 seconds and kept for a day.

    Arrays by band are in the order of `Band`. Counts of changes are of the interval before.
    """

    at = models.DateTimeField()
    pool = models.ForeignKey("Pool", on_delete=models.CASCADE, related_name="+", db_index=False)
    waiting = ArrayField(models.PositiveIntegerField(), help_text="PENDING tasks by band.")
    stuck = ArrayField(
        models.PositiveIntegerField(),
        help_text="Of these, by band: no cell of the pool can run them.",
    )
    held = ArrayField(
        models.PositiveIntegerField(), help_text="Attempts that hold capacity, by band."
    )
    started = models.PositiveIntegerField(default=0, help_text="Starts of programs.")
    latencies = ArrayField(
        models.PositiveIntegerField(),
        help_text="First starts, in buckets of the time since their tasks could start.",
    )
    succeeded = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(
        default=0, help_text="Tasks that ended FAILED, WORKER_FAILED or UNSCHEDULABLE."
    )
    killed = models.PositiveIntegerField(
        default=0, help_text="Tasks that ended KILLED or PREEMPTED."
    )
    failures = models.JSONField(
        default=dict,
        help_text="By reason: ended tasks, retried attempts, and the last three jobs.",
    )
    used = models.JSONField(default=dict, help_text="Held amount of each resource.")
    capacity = models.JSONField(default=dict, help_text="Of READY cells.")
    wanted = models.JSONField(
        null=True,
        help_text="Held amounts, and those of waiting tasks that more cells could run; empty:"
        " taken before this field existed.",
    )

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("at", "pool"), name="pool_sample_once_at_an_instant"),
        )

    def __str__(self) -> str:
        return f"sample {self.pk} of pool {self.pool_id}"


class Walk(models.Model):
    """The cursor of paged work of convergence: a walk over all rows, or over jobs with work."""

    name = models.CharField(max_length=32, primary_key=True)
    after = models.CharField(
        max_length=40,
        default="",
        blank=True,
        help_text="The key of the row after which the next page begins.",
    )
    scanned_at = models.DateTimeField(help_text="When the last page was read.")
    repaired = models.PositiveIntegerField(
        default=0, help_text="The number of repairs since this round began."
    )

    def __str__(self) -> str:
        return self.name


class InboxProbe(models.Model):
    """The last probe of an inbox shard, and until when the shard has delivered all messages.

    `delivered_until`: when the probe that the inbox returned last was sent.
    """

    shard = models.PositiveSmallIntegerField(primary_key=True)
    sent_at = models.DateTimeField()
    delivered_until = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"inbox {self.shard}"


class DeadLetter(models.Model):
    """A message that could not be applied, stored for inspection."""

    at = models.DateTimeField()
    source = models.CharField(max_length=100)
    error = models.TextField()
    body = models.TextField()

    def __str__(self) -> str:
        return f"dead letter {self.pk}"


class Alert(models.Model):
    """A condition that an operator should check; one open alert per kind and subject."""

    kind = models.CharField(max_length=63)
    subject = models.CharField(max_length=255)
    text = models.TextField()
    raised_at = models.DateTimeField()
    last_raised_at = models.DateTimeField(
        help_text="When it was last raised; updated at most once a minute."
    )
    cleared_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("kind", "subject"),
                condition=models.Q(cleared_at=None),
                name="alert_open_once",
            ),
        )
        indexes = (
            models.Index(
                fields=("cleared_at",),
                name="alert_cleared",
                condition=models.Q(cleared_at__isnull=False),
            ),
            models.Index(fields=("raised_at",), name="alert_raised"),
        )

    def __str__(self) -> str:
        return f"{self.kind}: {self.subject}"


class BulkOperation(models.Model):
    """An action on all jobs that a filter selects. Jobs after `last_job_id` are newer than it."""

    action = models.CharField(max_length=8, choices=[(it.value, it.value) for it in BulkAction])
    filter = models.JSONField(help_text="The fields that its jobs match.")
    reason = models.TextField()
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="bulk_operations"
    )
    token_id = models.BigIntegerField(
        null=True,
        blank=True,
        help_text="The token that started it, which limits it; empty: a session of the admin.",
    )
    state = models.CharField(
        max_length=8,
        choices=[(it.value, it.value) for it in BulkState],
        default=BulkState.RUNNING,
    )
    created_at = models.DateTimeField()
    turn_at = models.DateTimeField(help_text="When convergence last ran a page of it.")
    ended_at = models.DateTimeField(null=True, blank=True)
    ended_because = models.TextField(default="", blank=True, help_text="Why it was stopped.")
    expected = models.PositiveIntegerField(help_text="Jobs that were counted before its start.")
    after_job_id = models.BigIntegerField(
        default=0, help_text="The job up to which it is complete; it processes jobs by id."
    )
    last_job_id = models.BigIntegerField(help_text="The newest job when it was started.")
    done = models.PositiveIntegerField(default=0, help_text="Jobs on which it has acted.")
    refused = models.PositiveIntegerField(
        default=0, help_text="Jobs that did not permit the action in their present state."
    )
    refusals = models.JSONField(
        default=list, blank=True, help_text="The first refused jobs, with the texts."
    )

    class Meta:
        constraints = (
            models.CheckConstraint(
                condition=models.Q(state=BulkState.RUNNING) ^ models.Q(ended_at__isnull=False),
                name="bulk_operation_ended_iff_not_running",
            ),
        )
        indexes = (
            models.Index(
                fields=("turn_at",),
                name="bulk_operation_running",
                condition=models.Q(ended_at=None),
            ),
        )

    def __str__(self) -> str:
        return f"{self.action} jobs ({self.pk})"


class Schedule(models.Model):
    """A job that is submitted at each instant of a cron expression. `next_at`: None if paused."""

    project = models.ForeignKey(
        "controlplane.Project", on_delete=models.CASCADE, related_name="schedules"
    )
    name = models.CharField(max_length=63)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.CASCADE,
        related_name="schedules",
        help_text="The user that last wrote it, who owns its jobs.",
    )
    cron = models.CharField(max_length=MAX_CRON)
    time_zone = models.CharField(max_length=MAX_ZONE)
    catch_up = models.CharField(max_length=8, choices=[(it.value, it.value) for it in CatchUp])
    overlap = models.CharField(max_length=8, choices=[(it.value, it.value) for it in Overlap])
    job = models.JSONField(help_text="The document of each job, without a guid.")
    is_paused = models.BooleanField(default=False)
    paused_because = models.TextField(default="", blank=True)
    next_at = models.DateTimeField(null=True, blank=True, help_text="The next instant.")
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("project", "name"), name="schedule_name"),
            models.CheckConstraint(
                condition=models.Q(is_paused=False) | models.Q(next_at=None),
                name="schedule_paused_is_not_due",
            ),
        )
        indexes = (
            models.Index(
                fields=("next_at",), name="schedule_due", condition=models.Q(next_at__isnull=False)
            ),
        )

    def __str__(self) -> str:
        return self.name


class ScheduleFiring(models.Model):
    """What became of an instant of a schedule. `is_ended`: its job is known to have finished."""

    schedule = models.ForeignKey(
        Schedule, on_delete=models.CASCADE, related_name="firings", db_index=False
    )
    at = models.DateTimeField(help_text="The instant of the calendar, or of a run by hand.")
    fired_at = models.DateTimeField(help_text="When convergence processed it.")
    outcome = models.CharField(max_length=8, choices=[(it.value, it.value) for it in Outcome])
    text = models.TextField(default="", blank=True)
    # No reference: jobs are deleted before.
    job_id = models.BigIntegerField(null=True, blank=True)
    is_ended = models.BooleanField(default=False)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("schedule", "at"), name="schedule_firing_once"),
            models.CheckConstraint(
                condition=models.Q(outcome=Outcome.STARTED) ^ models.Q(job_id=None),
                name="schedule_firing_started_iff_job",
            ),
        )
        indexes = (
            models.Index(
                fields=("schedule",),
                name="schedule_firing_open",
                condition=models.Q(outcome=Outcome.STARTED, is_ended=False),
            ),
            models.Index(
                fields=("schedule", "at"),
                name="schedule_firing_waiting",
                condition=models.Q(outcome=Outcome.WAITING),
            ),
            models.Index(fields=("fired_at",), name="schedule_firing_age"),
        )

    def __str__(self) -> str:
        return f"{self.schedule_id} at {self.at:%Y-%m-%d %H:%M:%S}"


class AuditLine(models.Model):
    """An action of a person, token, command or cell. A trigger refuses changes and deletions.

    Only retention deletes lines, with the setting `cellrun.retention` in its transaction.
    """

    at = models.DateTimeField()
    actor = models.CharField(max_length=150, help_text="Name of the user, or of the component.")
    via = models.CharField(
        max_length=16, default="", blank=True, help_text="token, session, command, cell or system."
    )
    token = models.CharField(
        max_length=100, default="", blank=True, help_text="Name of the token of the request."
    )
    address = models.CharField(
        max_length=45, default="", blank=True, help_text="Address of the caller, if it is known."
    )
    request_id = models.CharField(
        max_length=64, default="", blank=True, help_text="X-Request-Id of the request."
    )
    action = models.CharField(max_length=32, help_text="Verb and noun, such as cancel.job.")
    subject = models.CharField(max_length=400)
    text = models.TextField(default="", blank=True, help_text="A reason or a description.")
    project = models.ForeignKey(
        "Project", models.DO_NOTHING, null=True, blank=True, db_constraint=False, related_name="+"
    )
    domain = models.ForeignKey(
        "Domain",
        models.DO_NOTHING,
        null=True,
        blank=True,
        db_constraint=False,
        db_index=False,
        related_name="+",
        help_text="Of a line about a domain; the domain of another line is that of its project.",
    )
    before = models.JSONField(null=True, blank=True, help_text="Changed fields, as they were.")
    after = models.JSONField(null=True, blank=True, help_text="Changed fields, as they are now.")
    xid = models.BigIntegerField(
        default=0, db_default=0, help_text="Number of the transaction that wrote the line."
    )

    class Meta:
        indexes = (
            models.Index(fields=("at",), name="audit_line_at"),
            models.Index(fields=("actor", "id"), name="audit_line_actor"),
            models.Index(fields=("action", "id"), name="audit_line_action"),
            models.Index(fields=("subject", "id"), name="audit_line_subject"),
        )

    def __str__(self) -> str:
        return f"{self.action}: {self.subject}"
