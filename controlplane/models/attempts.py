"""Attempts: executions of a task on a cell, which hold its capacity until their release.

Also the sessions of users in running attempts, the sizes of what attempts have in the store, which
count for their projects, and the totals of what they requested and used.
"""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from controlplane.contract.states import FailureKind, Phase, TaskState
from controlplane.domain.cells.exec_sessions import ExecState
from controlplane.domain.state.states import ATTEMPT_STATES, Reason, ReleaseKind, RetryBudget
from controlplane.models.choices import UNSUCCESSFUL_NUMBERS, finished_iff_terminal

IMAGE_FAILED = Q(reason=Reason.IMAGE_ERROR.value) | Q(
    phase=Phase.PULLING.value,
    started_at=None,
    reason__in=[Reason.BUILD_TIMEOUT.value, Reason.SYSTEM_FAILURE.value],
)
"""The condition of attempts that ended because their image could not be pulled or used."""

_UNENDED_EXECS = [int(ExecState.REQUESTED), int(ExecState.OPEN)]
_STATES = [(int(state), state.name) for state in sorted(ATTEMPT_STATES)]


class Attempt(models.Model):
    """One attempt. Its uid is also the name of its container and its task uuid in Flower."""

    uid = models.UUIDField(primary_key=True)
    task = models.ForeignKey(
        "Task",
        on_delete=models.CASCADE,
        related_name="attempts",
        db_constraint=False,
        db_index=False,
    )
    group = models.ForeignKey(
        "TaskGroup", on_delete=models.CASCADE, related_name="+", db_constraint=False, db_index=False
    )
    job = models.ForeignKey(
        "Job",
        on_delete=models.CASCADE,
        related_name="attempts",
        db_constraint=False,
        db_index=False,
    )
    cell = models.ForeignKey(
        "Cell",
        on_delete=models.PROTECT,
        related_name="attempts",
        db_constraint=False,
        db_index=False,
    )
    concurrency_id = models.BigIntegerField(
        null=True,
        blank=True,
        help_text="The concurrency key that it holds until its release; empty: its job has none.",
    )
    resources = models.JSONField(
        null=True,
        blank=True,
        help_text="Its request, if a retry rule increased it; empty: that of its group.",
    )
    incarnation = models.CharField(max_length=64)
    number = models.PositiveIntegerField()
    state = models.PositiveSmallIntegerField(choices=_STATES, default=TaskState.ASSIGNED)
    phase = models.CharField(max_length=16, default="", blank=True)
    phase_number = models.PositiveSmallIntegerField(
        default=0, help_text="Number of the newest phase in the history."
    )
    progress = models.PositiveSmallIntegerField(null=True, blank=True)
    report_seq = models.BigIntegerField(default=0)
    charged = models.CharField(
        max_length=12,
        choices=[(budget.value, budget.value) for budget in RetryBudget],
        default="",
        blank=True,
    )
    charge = models.PositiveIntegerField(
        default=0, help_text="Amount charged to the budget: 1, or the rest of the budget plus 1."
    )
    retry_rule = models.PositiveSmallIntegerField(
        null=True,
        blank=True,
        help_text="Number of the retry rule of its group that decided on its end, from 1.",
    )
    start_before = models.DateTimeField()
    stop_reason = models.CharField(max_length=32, default="", blank=True)
    stop_forced_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="Since when the stop has no grace period; empty: it has one.",
    )
    container_id = models.CharField(max_length=128, default="", blank=True)
    exit_code = models.BigIntegerField(null=True, blank=True)
    failure_kind = models.CharField(max_length=12, default="", blank=True)
    reason = models.CharField(max_length=32, default="", blank=True)
    message = models.TextField(default="", blank=True)
    result = models.TextField(null=True, blank=True)
    result_truncated = models.BooleanField(default=False)
    usage = models.JSONField(null=True, blank=True)
    details = models.JSONField(
        null=True,
        blank=True,
        help_text="addresses (of its ports), outputs (stored files), plugin_phase, plugin_state.",
    )
    created_at = models.DateTimeField()
    state_since = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    releasable_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="Of an exclusive attempt on a LOST cell: when the loss may release it.",
    )
    released_at = models.DateTimeField(null=True, blank=True)
    release_kind = models.CharField(
        max_length=12,
        choices=[(kind.value, kind.value) for kind in ReleaseKind],
        default="",
        blank=True,
    )

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("task", "number"), name="attempt_number_unique_in_task"
            ),
            models.UniqueConstraint(
                fields=("task",),
                condition=Q(released_at=None),
                name="task_has_one_unreleased_attempt",
            ),
            models.CheckConstraint(
                condition=finished_iff_terminal(), name="attempt_finished_iff_terminal"
            ),
            models.CheckConstraint(
                condition=Q(released_at=None) | Q(finished_at__isnull=False),
                name="attempt_released_after_its_end",
            ),
        )
        indexes = (
            models.Index(
                fields=("cell", "group"),
                name="attempt_unreleased",
                condition=Q(released_at=None),
                include=("resources",),
            ),
            models.Index(
                fields=("job",), name="attempt_unreleased_of_job", condition=Q(released_at=None)
            ),
            models.Index(
                fields=("concurrency_id", "job"),
                name="attempt_holds_key",
                condition=Q(concurrency_id__isnull=False, released_at=None),
            ),
            models.Index(
                fields=("concurrency_id", "created_at"),
                name="attempt_started_with_key",
                condition=Q(concurrency_id__isnull=False),
            ),
            models.Index(
                fields=("state", "uid"),
                name="attempt_unsuccessful",
                condition=Q(state__in=UNSUCCESSFUL_NUMBERS),
            ),
            models.Index(
                fields=("cell", "uid"),
                name="attempt_failed_by_cell",
                condition=Q(failure_kind=FailureKind.SYSTEM),
            ),
            models.Index(
                fields=("cell", "released_at"),
                name="attempt_released_by_cell",
                condition=Q(released_at__isnull=False),
            ),
            models.Index(
                fields=("cell", "finished_at"),
                name="attempt_image_failed",
                condition=IMAGE_FAILED,
            ),
        )

    def __str__(self) -> str:
        return str(self.uid)


class ExecSession(models.Model):
    """A program that a user runs inside a running attempt: `cellrun exec`.

    Only `commands.attempts.exec_sessions` writes its state.
    """

    uid = models.UUIDField(primary_key=True)
    attempt = models.ForeignKey(
        Attempt,
        on_delete=models.CASCADE,
        related_name="exec_sessions",
        db_constraint=False,
        db_index=False,
    )
    number = models.PositiveIntegerField(help_text="In its attempt, from 1.")
    command = ArrayField(models.TextField())
    tty = models.BooleanField(default=False)
    stdin = models.BooleanField(default=False)
    rows = models.PositiveIntegerField(
        default=0, help_text="Of the terminal at the beginning; 0: not known."
    )
    columns = models.PositiveIntegerField(default=0)
    actor = models.CharField(max_length=150, help_text="Name of the user.")
    token = models.CharField(max_length=100, default="", blank=True, help_text="Name of the token.")
    state = models.PositiveSmallIntegerField(
        choices=[(int(state), state.name) for state in ExecState], default=int(ExecState.REQUESTED)
    )
    cell_nonce = models.CharField(
        max_length=64, default="", blank=True, help_text="Of the process that claimed the session."
    )
    requested_at = models.DateTimeField()
    opened_at = models.DateTimeField(null=True, blank=True)
    client_seen_at = models.DateTimeField(help_text="When the client was last connected.")
    cell_seen_at = models.DateTimeField(
        null=True, blank=True, help_text="When the cell was last connected."
    )
    ended_at = models.DateTimeField(null=True, blank=True)
    exit_code = models.IntegerField(null=True, blank=True)
    reason = models.TextField(
        default="", blank=True, help_text="Why it ended, unless its program did."
    )

    class Meta:
        verbose_name = "exec session"
        constraints = (
            models.UniqueConstraint(
                fields=("attempt", "number"), name="exec_session_number_in_attempt"
            ),
            models.CheckConstraint(
                condition=Q(state=int(ExecState.ENDED), ended_at__isnull=False)
                | Q(state__in=_UNENDED_EXECS, ended_at=None),
                name="exec_session_ended_with_instant",
            ),
            models.CheckConstraint(
                condition=~Q(state=int(ExecState.OPEN))
                | Q(opened_at__isnull=False, cell_seen_at__isnull=False),
                name="exec_session_open_with_instants",
            ),
        )
        indexes = (
            models.Index(
                fields=("attempt", "actor"), name="exec_session_unended", condition=Q(ended_at=None)
            ),
        )

    def __str__(self) -> str:
        return str(self.uid)


class StoredSize(models.Model):
    """Bytes in the store of one attempt or, without `attempt_uid`, of the inputs of one job.

    Each row has one writer at a time, so that concurrent uploads of a project never wait for each
    other. Convergence adds the uncounted difference to the total of the project.
    """

    job_id = models.BigIntegerField()
    attempt_uid = models.UUIDField(null=True, blank=True, unique=True)
    project = models.ForeignKey(
        "Project", on_delete=models.PROTECT, related_name="+", db_constraint=False, db_index=False
    )
    file_bytes = models.BigIntegerField(
        default=0, help_text="Artifacts and checkpoint, also unfinished ones; inputs of a job."
    )
    stdout_bytes = models.BigIntegerField(default=0)
    stderr_bytes = models.BigIntegerField(default=0)
    counted_bytes = models.BigIntegerField(
        default=0, help_text="The part that the total of the project contains."
    )
    is_uncounted = models.BooleanField(
        default=True, help_text="Whether it has changed since it was last counted."
    )

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("job_id",),
                condition=Q(attempt_uid=None),
                name="stored_size_of_inputs_once_per_job",
            ),
        )
        indexes = (
            models.Index(
                fields=("project", "id"),
                name="stored_size_uncounted",
                condition=Q(is_uncounted=True),
            ),
        )

    def __str__(self) -> str:
        return f"size of {self.attempt_uid or f'the inputs of job {self.job_id}'}"


class StoredTotal(models.Model):
    """The counted bytes of a project. Only convergence writes it."""

    project = models.OneToOneField(
        "Project", on_delete=models.CASCADE, primary_key=True, related_name="stored_total"
    )
    total_bytes = models.BigIntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.total_bytes} bytes of {self.project}"


class UsageTotal(models.Model):
    """What attempts released in a month requested and used, by project, owner and job name.

    Only attempts of settled jobs are counted. Seconds are those from the creation of an attempt to
    its release. `measured` amounts are the requests of the attempts with a measurement: their
    difference to the used amounts is wasted.
    """

    month = models.DateField(help_text="The first day of the month, in UTC.")
    project = models.ForeignKey(
        "Project", on_delete=models.CASCADE, related_name="+", db_index=False
    )
    owner = models.CharField(max_length=150, help_text="Name of the user.")
    job_name = models.CharField(
        max_length=63, blank=True, help_text="Empty: all names above the maximum number."
    )
    attempts = models.BigIntegerField(default=0)
    unmeasured_attempts = models.BigIntegerField(
        default=0, help_text="Attempts whose CPU time the cell did not report."
    )
    cpu_seconds_requested = models.FloatField(default=0.0)
    cpu_seconds_measured = models.FloatField(default=0.0)
    cpu_seconds_used = models.FloatField(default=0.0)
    memory_mib_seconds_requested = models.FloatField(default=0.0)
    memory_mib_seconds_measured = models.FloatField(default=0.0)
    memory_mib_seconds_used = models.FloatField(
        default=0.0, help_text="The peak of each attempt for its whole time."
    )
    memory_peak_mib = models.FloatField(default=0.0, help_text="Of one attempt.")
    gpu_seconds_requested = models.FloatField(default=0.0)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("month", "project", "owner", "job_name"), name="usage_total_once"
            ),
        )

    def __str__(self) -> str:
        return f"usage of {self.job_name or 'other jobs'} of {self.owner} in {self.month:%Y-%m}"
