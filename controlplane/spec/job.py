"""The job document: with a list of groups, or with the fields of one group at the top."""

from typing import Literal

from pydantic import Field

from controlplane.spec.fields import (
    MAX_COUNT,
    MAX_SECONDS,
    MIN_SECONDS,
    Guid,
    Instant,
    LabelName,
    LabelValue,
    Name,
)
from controlplane.spec.group import Defaults, GroupFields, TaskGroupSpec
from controlplane.spec.parts import (
    Cache,
    Callback,
    ConcurrencySpec,
    JobDependency,
    JobReference,
    Retries,
)
from controlplane.spec.placing import Constraint

MAX_GROUPS = 100
MAX_LABELS = 64
MAX_ANNOTATION = 16_384
MAX_TTL_SECONDS = 10 * MAX_SECONDS
SHORT_FORM_GROUP = "main"
DEFAULT_TTL_SECONDS = 604_800  # one week


class JobFields(Defaults):
    """The fields of a job in either form."""

    name: Name
    guid: Guid | None = Field(
        default=None,
        description="A second submission with the same guid and body returns the same job.",
    )
    domain: Name = "default"
    project: Name = "default"
    pool: Name = "default"
    band: Literal["production", "interactive", "batch"] = "interactive"
    kind: Name = Field(
        default="batch", description="batch, interactive, inference, or an installed hook's name."
    )
    max_task_failures: int | None = Field(
        default=None,
        ge=0,
        le=MAX_COUNT,
        description="Default: replicas less an explicit minimum, else 0.",
    )
    coscheduled: bool = Field(
        default=False, description="A gang: its minima start together or not at all."
    )
    group_by: LabelName | None = Field(
        default=None, description="Of a gang: a label with the same value on all its cells."
    )
    start_after: Instant | None = None
    scheduling_timeout_seconds: float | None = Field(default=None, ge=MIN_SECONDS, le=MAX_SECONDS)
    depends_on: list[JobDependency] = Field(default=[], max_length=100)
    parent: JobReference | None = Field(
        default=None, description="When that job ends without success, this one ends, too."
    )
    concurrency: ConcurrencySpec | None = Field(
        default=None, description="A limit that it shares with all jobs of its key."
    )
    callback: Callback = Callback()
    annotation: str = Field(default="", max_length=MAX_ANNOTATION)
    labels: dict[LabelName, LabelValue] = Field(default={}, max_length=MAX_LABELS)
    existing_job_policy: Literal["error", "keep", "replace"] | None = Field(
        default=None,
        description="For your unfinished job with that name in the project. Absent: both run.",
    )
    allow_unsatisfiable: bool = False
    ttl_seconds_after_finished: int = Field(
        default=DEFAULT_TTL_SECONDS,
        ge=0,
        le=MAX_TTL_SECONDS,
        description="After this time the settled job is deleted, with all its data.",
    )


class JobSpec(JobFields):
    """A job with its groups; the short form is converted to one."""

    groups: list[TaskGroupSpec] = Field(min_length=1, max_length=MAX_GROUPS)
    min_available: int | None = Field(
        default=None,
        ge=0,
        le=MAX_COUNT,
        description="How many of all tasks must succeed; default: the sum of the groups' minima.",
    )

    def total_replicas(self) -> int:
        """Return the number of tasks of the job."""
        return sum(group.replicas for group in self.groups)

    def minima(self) -> list[int]:
        """Return how many tasks of each group must succeed.

        The default is all replicas. If only the job has a minimum, the minimum of a group is the
        part of it that the other groups cannot provide. Source: Volcano, task-level and job-level
        `minAvailable`.
        """
        if self.min_available is None or any(g.min_available is not None for g in self.groups):
            return [g.replicas if g.min_available is None else g.min_available for g in self.groups]
        spare = self.total_replicas() - self.min_available
        return [max(group.replicas - spare, 0) for group in self.groups]

    def minimum(self) -> int:
        """Return how many of all tasks must succeed."""
        return sum(self.minima()) if self.min_available is None else self.min_available

    def has_explicit_minimum(self) -> bool:
        """Return whether the job or a group has an explicit minimum."""
        minima = (self.min_available, *(group.min_available for group in self.groups))
        return any(minimum is not None for minimum in minima)

    def tolerated_failures(self) -> int:
        """Return `max_task_failures`; by default replicas minus an explicit minimum, else 0."""
        if self.max_task_failures is not None:
            return self.max_task_failures
        return self.total_replicas() - self.minimum() if self.has_explicit_minimum() else 0

    def runs_at_most_once(self, group: TaskGroupSpec) -> bool:
        """Return whether tasks of `group` run at most once; the job's value is the default."""
        level = group if "delivery" in group.model_fields_set else self
        return level.delivery == "at_most_once"

    def retries_permanent(self, group: TaskGroupSpec) -> bool:
        """Return whether permanent failures are retried; the job's value is the default."""
        return (group if "retry_permanent" in group.model_fields_set else self).retry_permanent

    def exclusive_of(self, group: TaskGroupSpec) -> bool | Literal["strict"]:
        """Return `exclusive` of `group`; the job's value is the default."""
        return (group if "exclusive" in group.model_fields_set else self).exclusive

    def network_of(self, group: TaskGroupSpec) -> str:
        """Return the network of `group`; by default a gang's containers have their own.

        A process or a runner uses its host's network. Source: Backend.AI, "a cluster-dedicated
        network is configured" for sessions of several kernels.
        """
        if group.network is not None:
            return group.network
        return "gang" if self.coscheduled and group.task_type == "container" else "default"

    def cache_of(self, group: TaskGroupSpec) -> Cache:
        """Return the cache of `group`; the job's value is the default."""
        return (group if "cache" in group.model_fields_set else self).cache

    def constraints_of(self, group: TaskGroupSpec) -> list[Constraint]:
        """Return the constraints of `group`; the job's value is the default."""
        return (group if "constraints" in group.model_fields_set else self).constraints

    def tags_of(self, group: TaskGroupSpec) -> list[str]:
        """Return the placement tags of `group`; the job's value is the default."""
        return (group if "placement_tags" in group.model_fields_set else self).placement_tags

    def retries_of(self, group: TaskGroupSpec) -> Retries:
        """Return the retry limits of `group`: its own, then the job's, then the defaults."""
        levels = [item for item in (self.retries, group.retries) if item is not None]
        merged = {name: getattr(item, name) for item in levels for name in item.model_fields_set}
        return _DEFAULT_RETRIES.model_copy(update=merged) if merged else _DEFAULT_RETRIES


class ShortJob(JobFields, GroupFields):
    """A job of one group, named `main`, with its fields at the top."""

    def expanded(self) -> JobSpec:
        """Return the same job with a list of groups."""
        values = self.__dict__
        group = _EMPTY_GROUP.model_copy(update={name: values[name] for name in _SHORT_GROUP_FIELDS})
        job = {name: values[name] for name in _SHORT_JOB_FIELDS}
        return _EMPTY_JOB.model_copy(update={"groups": [group], **job})


# Without `Defaults`: these stay fields of the job, and the group inherits them.
_SHORT_GROUP_FIELDS = tuple(GroupFields.model_fields.keys() - Defaults.model_fields.keys())
_SHORT_JOB_FIELDS = tuple(JobFields.model_fields)
# Copies of these take a fifth of the time of `model_construct`, which copies every default deeply.
_DEFAULT_RETRIES = Retries()
_EMPTY_GROUP = TaskGroupSpec.model_construct(name=SHORT_FORM_GROUP)
_EMPTY_JOB = JobSpec.model_construct(groups=[])
