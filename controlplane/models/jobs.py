"""Jobs and their task groups, with the tenancy they belong to."""

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from controlplane.contract.states import TaskState
from controlplane.domain.states import JOB_STATES, Band
from controlplane.models.choices import TERMINAL_NUMBERS, finished_iff_terminal

_JOB_STATES = [(int(state), state.name) for state in sorted(JOB_STATES)]


def _no_counts() -> list[int]:
    return [0] * (max(TaskState) + 1)


class Domain(models.Model):
    """The outermost tenant."""

    name = models.CharField(max_length=63, unique=True)

    def __str__(self) -> str:
        return self.name


class Project(models.Model):
    """A tenant's project; guids of jobs are unique in it."""

    domain = models.ForeignKey(Domain, on_delete=models.PROTECT, related_name="projects")
    name = models.CharField(max_length=63)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("domain", "name"), name="project_name_unique_in_domain"
            ),
        )

    def __str__(self) -> str:
        return f"{self.domain.name}/{self.name}"


class Job(models.Model):
    """What was submitted. `state` follows from its tasks, which are being ended if `ending_as`."""

    guid = models.CharField(max_length=255, null=True, blank=True)
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="jobs")
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="jobs"
    )
    pool = models.ForeignKey("Pool", on_delete=models.PROTECT, related_name="jobs")
    name = models.CharField(max_length=63)
    band = models.PositiveSmallIntegerField(
        choices=[(int(band), band.name.lower()) for band in Band], default=Band.INTERACTIVE
    )
    kind = models.CharField(max_length=63, default="batch")
    state = models.PositiveSmallIntegerField(choices=_JOB_STATES, default=TaskState.PENDING)
    ending_as = models.PositiveSmallIntegerField(choices=_JOB_STATES, null=True, blank=True)
    ending_reason = models.CharField(max_length=32, default="", blank=True)
    ending_force = models.BooleanField(default=False)
    failure_reason = models.TextField(default="", blank=True)
    min_available = models.PositiveIntegerField()
    explicit_minimum = models.BooleanField(default=False)
    max_task_failures = models.PositiveIntegerField(default=0)
    has_dependencies = models.BooleanField(default=False)
    scheduling_timeout_seconds = models.FloatField(null=True, blank=True)
    spec = models.JSONField(help_text="As submitted.")
    spec_digest = models.CharField(
        max_length=64, help_text="SHA-256 of the submitted body, for idempotency."
    )
    labels = models.JSONField(default=dict, blank=True)
    annotation = models.TextField(default="", blank=True)
    start_after = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    settled_at = models.DateTimeField(
        null=True, blank=True, help_text="When all its attempts were released."
    )

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("project", "guid"),
                condition=Q(guid__isnull=False),
                name="job_guid_unique_in_project",
            ),
            models.CheckConstraint(
                condition=finished_iff_terminal(), name="job_finished_iff_terminal"
            ),
        )
        indexes = (
            models.Index(fields=("name",), name="job_name"),
            models.Index(fields=("state", "-id"), name="job_state_newest"),
            models.Index(
                fields=("id",),
                name="job_ending",
                condition=Q(ending_as__isnull=False, finished_at=None),
            ),
            models.Index(
                fields=("id",),
                name="job_unsettled",
                condition=Q(state__in=TERMINAL_NUMBERS, settled_at__isnull=True),
            ),
            models.Index(
                fields=("owner",), name="job_open_of_owner", condition=Q(finished_at=None)
            ),
        )

    def __str__(self) -> str:
        return f"{self.name} ({self.pk})"


class TaskGroup(models.Model):
    """Tasks of a job that share one definition; `counts[n]` of them are in state number n."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="groups")
    name = models.CharField(max_length=63)
    position = models.PositiveIntegerField()
    replicas = models.PositiveIntegerField()
    min_available = models.PositiveIntegerField()
    explicit_minimum = models.BooleanField(default=False)
    counts = ArrayField(models.PositiveIntegerField(), default=_no_counts)
    killed_by_dependency = models.PositiveIntegerField(default=0)
    resources = models.JSONField(
        help_text="Per task: cpu_millis, memory_mib, disk_mib, gpu and named ones."
    )
    task_type = models.CharField(max_length=63, help_text="Which its cell must be able to run.")
    launch = models.JSONField(help_text="What a cell is told of the group.")
    depends_on = models.JSONField(default=list, blank=True)
    retries_failure = models.PositiveIntegerField(default=0)
    retries_preemption = models.PositiveIntegerField(default=100)
    retries_system = models.PositiveIntegerField(default=3)
    timeout_seconds = models.FloatField(null=True, blank=True)
    startable_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="When its tasks may first be placed; empty while a dependency is open.",
    )
    deadline_at = models.DateTimeField(
        null=True, blank=True, help_text="Scheduling deadline of its first start."
    )
    pending_reason = models.JSONField(null=True, blank=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("job", "name"), name="group_name_unique_in_job"),
        )
        indexes = (
            models.Index(
                fields=("deadline_at",),
                name="group_deadline",
                condition=Q(deadline_at__isnull=False),
            ),
        )

    def __str__(self) -> str:
        return f"{self.name} of job {self.job_id}"
