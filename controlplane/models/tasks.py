"""Tasks: one row per replica of a group."""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from controlplane.contract.states import TaskState
from controlplane.domain.cache.policy import RUNS, CacheStatus
from controlplane.domain.state.states import ACTIVE
from controlplane.models.choices import (
    TASK_STATES,
    UNSUCCESSFUL_NUMBERS,
    finished_iff_terminal,
)
from controlplane.models.querysets import JobPartQuerySet


class Task(models.Model):
    """The unit of execution. `attempt_open`: an unreleased attempt excludes a placement.

    Its links have no database constraint: one module writes them in bulk, and the invariants check
    them.
    """

    job = models.ForeignKey(
        "Job", on_delete=models.CASCADE, related_name="tasks", db_constraint=False, db_index=False
    )
    group = models.ForeignKey(
        "TaskGroup",
        on_delete=models.CASCADE,
        related_name="tasks",
        db_constraint=False,
        db_index=False,
    )
    shape_id = models.BigIntegerField(
        help_text="The shape of its group, or that of its own request."
    )
    resources = models.JSONField(
        null=True,
        blank=True,
        help_text="Its request, if a retry rule increased it; empty: that of its group.",
    )
    index = models.PositiveIntegerField()
    state = models.PositiveSmallIntegerField(choices=TASK_STATES, default=TaskState.PENDING)
    attempt_number = models.PositiveIntegerField(default=0)
    attempt_uid = models.UUIDField(null=True, blank=True)
    attempt_open = models.BooleanField(default=False)
    cache_status = models.PositiveSmallIntegerField(
        choices=[(int(status), status.name) for status in CacheStatus],
        default=CacheStatus.DISABLED,
    )
    cache_blocked = models.BooleanField(
        default=False,
        help_text="Placement skips it: its result is looked up, or an identical task runs.",
    )
    cache_identity = models.UUIDField(
        null=True, blank=True, help_text="The digest of scope and key."
    )
    cache_key = models.CharField(max_length=330, null=True, blank=True)
    cache_entry_id = models.BigIntegerField(
        null=True, blank=True, help_text="The entry from which it has its result."
    )
    failure_count = models.PositiveIntegerField(default=0)
    preemption_count = models.PositiveIntegerField(default=0)
    system_failure_count = models.PositiveIntegerField(default=0)
    system_row = models.PositiveIntegerField(default=0, help_text="Consecutive system failures.")
    refusal_row = models.PositiveIntegerField(default=0, help_text="Consecutive refusals.")
    consecutive_crashes = models.PositiveIntegerField(
        default=0,
        help_text="Consecutive ends of a service whose attempts ran for less than a minute.",
    )
    not_before = models.DateTimeField(null=True, blank=True)
    avoid_cell_ids = ArrayField(
        models.BigIntegerField(),
        null=True,
        blank=True,
        help_text="Cells on which it had consecutive system failures, the latest last.",
    )
    prefer_cell_id = models.BigIntegerField(
        null=True,
        blank=True,
        help_text="The cell on which its program failed; the retry prefers it.",
    )
    nominated_cell_id = models.BigIntegerField(
        null=True,
        blank=True,
        help_text="The cell on which capacity is reserved for it until `nominated_until`.",
    )
    nominated_until = models.DateTimeField(null=True, blank=True)
    failure_reason = models.TextField(default="", blank=True)
    updated_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    objects = JobPartQuerySet.as_manager()

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("group", "index"), name="task_index_unique_in_group"),
            models.CheckConstraint(
                condition=finished_iff_terminal(), name="task_finished_iff_terminal"
            ),
            models.CheckConstraint(
                condition=~Q(state__in=sorted(int(state) for state in ACTIVE))
                | Q(attempt_open=True),
                name="task_active_has_open_attempt",
            ),
        )
        indexes = (
            models.Index(fields=("job", "id"), name="task_of_job"),
            models.Index(
                fields=("shape_id", "group", "index"),
                name="task_placeable",
                condition=Q(state=int(TaskState.PENDING), attempt_open=False),
                include=("not_before", "cache_blocked"),
            ),
            models.Index(
                fields=("group", "index"),
                name="task_grown",
                condition=Q(state=int(TaskState.PENDING), resources__isnull=False),
            ),
            models.Index(
                fields=("group", "index"),
                name="task_cache_lookup",
                condition=Q(state=int(TaskState.PENDING), cache_status=int(CacheStatus.LOOKUP)),
            ),
            models.Index(
                fields=("cache_identity", "id"),
                name="task_cache_pending",
                condition=Q(state=int(TaskState.PENDING), cache_identity__isnull=False),
            ),
            models.Index(
                fields=("id",),
                name="task_cache_store",
                condition=Q(
                    state=int(TaskState.SUCCEEDED),
                    cache_status__in=sorted(int(status) for status in RUNS),
                ),
            ),
            models.Index(
                fields=("cache_entry_id",),
                name="task_of_cache_entry",
                condition=Q(cache_entry_id__isnull=False),
            ),
            models.Index(
                fields=("state", "id"),
                name="task_unsuccessful",
                condition=Q(state__in=UNSUCCESSFUL_NUMBERS),
            ),
            models.Index(
                fields=("nominated_cell_id",),
                name="task_nominated",
                condition=Q(nominated_cell_id__isnull=False),
            ),
        )

    def __str__(self) -> str:
        return f"task {self.pk}"
