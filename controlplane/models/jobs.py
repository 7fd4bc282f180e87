"""Jobs and their task groups, with the tenancy they belong to."""

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Collate, Lower

from controlplane.contract.states import TaskState
from controlplane.domain.roles import Role
from controlplane.domain.state.states import JOB_STATES, Band, CallbackOn, Exclusive
from controlplane.models.choices import TERMINAL_NUMBERS, finished_iff_terminal
from controlplane.models.querysets import JobPartQuerySet, JobQuerySet
from controlplane.spec.job import DEFAULT_TTL_SECONDS

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
    archived_at = models.DateTimeField(
        null=True, blank=True, help_text="Since when it accepts no new jobs and secrets."
    )

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("domain", "name"), name="project_name_unique_in_domain"
            ),
        )

    def __str__(self) -> str:
        return f"{self.domain.name}/{self.name}"


class Job(models.Model):
    """A submitted job. `state` follows from its tasks; `ending_as`: the state that it will get."""

    guid = models.CharField(max_length=255, null=True, blank=True)
    project = models.ForeignKey(
        Project, on_delete=models.PROTECT, related_name="jobs", db_index=False
    )
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="jobs", db_index=False
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
    explicit_minimum = models.BooleanField(
        default=False,
        help_text="Whether the job or one of its groups was submitted with a minimum.",
    )
    max_task_failures = models.PositiveIntegerField(default=0)
    has_dependencies = models.BooleanField(default=False)
    coscheduled = models.BooleanField(
        default=False,
        help_text="A gang: the minimum of each group starts together, or no task starts.",
    )
    group_by = models.CharField(
        max_length=63,
        default="",
        blank=True,
        help_text="Of a gang: its cells have the same value of this label.",
    )
    is_requeuing = models.BooleanField(
        default=False, help_text="Its gang fell below a minimum and is being requeued, in pages."
    )
    is_held = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Whether it has an open hold of its own; placement skips its waiting tasks.",
    )
    queue_rank = models.BigIntegerField(
        default=0,
        db_default=0,
        help_text="Its place in its band, the lowest first; 0 unless it was moved.",
    )
    concurrency_id = models.BigIntegerField(
        null=True,
        blank=True,
        help_text="The id of its concurrency key in the project; empty: it has none.",
    )
    waits_for_jobs = models.BooleanField(
        default=False, help_text="Whether a job that it depends on has not met its condition."
    )
    is_watched = models.BooleanField(
        default=False, help_text="Whether other jobs depend on it, are its children, or replace it."
    )
    parent = models.ForeignKey(
        "self",
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="children",
        db_index=False,
    )
    retry_of = models.ForeignKey(
        "self",
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="retries",
        db_index=False,
    )
    scheduling_timeout_seconds = models.FloatField(
        null=True,
        blank=True,
        help_text="Its own scheduling timeout or that of one-off tasks; empty: the pool's applies.",
    )
    spec = models.JSONField(help_text="The submitted document.")
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
        null=True,
        blank=True,
        help_text="When the job had ended and all its attempts were released.",
    )
    is_usage_counted = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Whether the totals of usage contain its attempts.",
    )
    ttl_seconds = models.PositiveIntegerField(
        default=DEFAULT_TTL_SECONDS,
        help_text="Seconds from the settlement of the job to its deletion.",
    )
    expires_at = models.DateTimeField(
        null=True, blank=True, help_text="Time of the automatic deletion."
    )
    deleted_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="Since when it is hidden; its rows are removed once it is settled.",
    )
    is_one_off = models.BooleanField(
        default=False, help_text="Whether its only task was created as a one-off task (Diego)."
    )
    callback_on = models.CharField(
        max_length=4,
        choices=[(scope.value, scope.value) for scope in CallbackOn],
        default=CallbackOn.NOTHING,
        blank=True,
        help_text="Whether `callback_url` receives the end of each task, or of the job.",
    )
    callback_url = models.TextField(default="", blank=True)
    callback_host = models.CharField(
        max_length=260, default="", blank=True, help_text="Normalized host:port of `callback_url`."
    )

    objects = JobQuerySet.as_manager()

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("project", "guid"),
                condition=Q(guid__isnull=False, deleted_at=None),
                name="job_guid_unique_in_project",
            ),
            models.CheckConstraint(
                condition=finished_iff_terminal(), name="job_finished_iff_terminal"
            ),
        )
        indexes = (
            models.Index(fields=("name",), name="job_name"),
            models.Index(Collate(Lower("name"), "C"), name="job_name_beginning"),
            models.Index(
                Collate(Lower("guid"), "C"),
                name="job_guid_beginning",
                condition=Q(guid__isnull=False),
            ),
            models.Index(fields=("project", "-id"), name="job_project_newest"),
            models.Index(fields=("owner", "-id"), name="job_owner_newest"),
            models.Index(fields=("state", "-id"), name="job_state_newest"),
            models.Index(fields=("band", "-id"), name="job_band_newest"),
            models.Index(fields=("is_one_off", "-id"), name="job_one_off_newest"),
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
                fields=("id",),
                name="job_usage_uncounted",
                condition=Q(settled_at__isnull=False, is_usage_counted=False),
            ),
            models.Index(
                fields=("owner", "name"), name="job_open_of_owner", condition=Q(finished_at=None)
            ),
            models.Index(
                fields=("parent",), name="job_of_parent", condition=Q(parent__isnull=False)
            ),
            models.Index(
                fields=("retry_of",), name="job_retries", condition=Q(retry_of__isnull=False)
            ),
            models.Index(
                fields=("id",),
                name="job_waits_for_jobs",
                condition=Q(waits_for_jobs=True, finished_at=None),
            ),
            models.Index(
                fields=("concurrency_id", "id"),
                name="job_open_of_key",
                condition=Q(concurrency_id__isnull=False, finished_at=None),
            ),
            models.Index(fields=("id",), name="job_requeuing", condition=Q(is_requeuing=True)),
            models.Index(fields=("id",), name="job_held", condition=Q(is_held=True)),
            models.Index(
                fields=("pool", "band", "queue_rank"),
                name="job_moved",
                condition=~Q(queue_rank=0) & Q(finished_at=None),
            ),
            models.Index(fields=("id",), name="job_deleted", condition=Q(deleted_at__isnull=False)),
            models.Index(
                fields=("expires_at", "id"),
                name="job_expires",
                condition=Q(expires_at__isnull=False, deleted_at=None),
            ),
        )

    def __str__(self) -> str:
        return f"{self.name} ({self.pk})"


class Hold(models.Model):
    """A hold of a job, or of all jobs of a project: no waiting task is placed until its release."""

    job = models.ForeignKey(
        Job, on_delete=models.CASCADE, related_name="holds", null=True, blank=True
    )
    project = models.ForeignKey(
        Project, on_delete=models.CASCADE, related_name="holds", null=True, blank=True
    )
    held_at = models.DateTimeField()
    held_by = models.CharField(max_length=150)
    role = models.CharField(
        max_length=16,
        choices=[(role.value, role.value) for role in Role],
        help_text="The role of its holder on the project; a lower one cannot release it.",
    )
    reason = models.TextField()
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = (
            models.CheckConstraint(
                condition=Q(job__isnull=True) ^ Q(project__isnull=True),
                name="hold_of_job_or_project",
            ),
            models.UniqueConstraint(
                fields=("job",), condition=Q(ended_at=None), name="hold_open_once_of_job"
            ),
            models.UniqueConstraint(
                fields=("project",), condition=Q(ended_at=None), name="hold_open_once_of_project"
            ),
        )

    def __str__(self) -> str:
        return f"hold {self.pk}"


class JobDependency(models.Model):
    """A dependency of a job on another, stamped when it is met or can no longer be met.

    `on_job` has no constraint: the other job may be deleted after the stamp.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="dependencies")
    on_job = models.ForeignKey(
        Job,
        on_delete=models.DO_NOTHING,
        related_name="dependants",
        db_constraint=False,
        db_index=False,
    )
    on_name = models.CharField(
        max_length=255, help_text="Guid or id by which the submitter named the other job."
    )
    until = models.CharField(max_length=9)
    met_at = models.DateTimeField(null=True, blank=True)
    failed_at = models.DateTimeField(null=True, blank=True)

    objects = JobPartQuerySet.as_manager()

    class Meta:
        verbose_name_plural = "job dependencies"
        constraints = (
            models.UniqueConstraint(
                fields=("job", "on_job", "until"), name="dependency_named_once"
            ),
            models.CheckConstraint(
                condition=Q(met_at=None) | Q(failed_at=None), name="dependency_met_or_failed"
            ),
        )
        indexes = (
            models.Index(
                fields=("on_job",),
                name="dependency_open",
                condition=Q(met_at=None, failed_at=None),
            ),
        )

    def __str__(self) -> str:
        return f"job {self.job_id} waits until job {self.on_job_id} has {self.until}"


class TaskGroup(models.Model):
    """Tasks of a job with the same definition; `counts[n]` of them are in state number n."""

    # The index of the constraint serves searches by job, too.
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="groups", db_index=False)
    name = models.CharField(max_length=63)
    position = models.PositiveIntegerField()
    replicas = models.PositiveIntegerField(
        help_text="Submitted number of tasks; sent with the callbacks of its tasks."
    )
    task_count = models.PositiveIntegerField(
        help_text="Number of its tasks in this job: less than `replicas` in a retry of another job."
    )
    min_available = models.PositiveIntegerField()
    counts = ArrayField(models.PositiveIntegerField(), default=_no_counts)
    killed_by_dependency = models.PositiveIntegerField(default=0)
    resources = models.JSONField(
        help_text="Request of each task: cpu_millis, memory_mib, disk_mib, gpu and named resources."
    )
    task_type = models.CharField(max_length=63, help_text="Task type that its cell must offer.")
    shape_id = models.BigIntegerField(help_text="The requirements of its tasks for placement.")
    launch = models.JSONField(help_text="The definition of the group for cells.")
    prepared = models.JSONField(
        default=dict, blank=True, help_text="Fields that the job's kind set, with their values."
    )
    cache = models.JSONField(
        null=True, blank=True, help_text="How its tasks use the cache; empty: they do not."
    )
    depends_on = models.JSONField(default=list, blank=True)
    retries_failure = models.PositiveIntegerField(default=0)
    retries_preemption = models.PositiveIntegerField(default=100)
    retries_system = models.PositiveIntegerField(default=3)
    retry_permanent = models.BooleanField(
        default=False,
        help_text="Whether permanent failures are also retried.",
    )
    retry_rules = models.JSONField(
        null=True,
        blank=True,
        help_text="The retry rules of its tasks (`on_exit`); empty: it has none.",
    )
    at_most_once = models.BooleanField(
        default=False, help_text="Whether a task is not retried once it may have had a container."
    )
    exclusive = models.CharField(
        max_length=6,
        choices=[(kind.value, kind.value or "no") for kind in Exclusive],
        default=Exclusive.NO,
        blank=True,
        help_text="Whether two attempts of one task may never run at the same time.",
    )
    timeout_seconds = models.FloatField(null=True, blank=True)
    timeout_is_lifetime = models.BooleanField(
        default=False,
        help_text="Whether `timeout_seconds` is the lifetime_seconds of the group, the"
        " shorter of the two.",
    )
    startable_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="When its tasks may first be placed; empty while a dependency is open.",
    )
    deadline_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="Deadline of the first start, if the job has a scheduling timeout;"
        " empty: the pool's applies.",
    )
    pending_reason = models.JSONField(
        null=True,
        blank=True,
        help_text="Why it waits as part of a gang; empty: its shape has the reason.",
    )

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("job", "name"), name="group_name_unique_in_job"),
        )

    def __str__(self) -> str:
        return f"{self.name} of job {self.job_id}"
