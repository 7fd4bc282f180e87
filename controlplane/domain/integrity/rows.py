"""The rows that invariants check: jobs, cells, totals of projects, keys, instants."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, TypeVar
from uuid import UUID

from controlplane.contract.states import TaskState
from controlplane.domain.cache.policy import CacheStatus
from controlplane.domain.state.dependencies import JobMilestones

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job."""

    id: int
    state: TaskState
    ending_as: TaskState | None
    min_available: int
    explicit_minimum: bool
    max_task_failures: int
    coscheduled: bool
    is_requeuing: bool
    waits_for_jobs: bool
    started_at: datetime | None
    finished_at: datetime | None
    settled_at: datetime | None
    is_watched: bool = False
    concurrency_id: int | None = None

    @property
    def job_id(self) -> int:
        """Return its id under the name that the other records use."""
        return self.id

    def __str__(self) -> str:
        return f"job {self.id}"


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A group; `counts[n]` is the stored number of its tasks in state n.

    `retry_rules`: its rules in JSON, `resources`: its request in JSON.
    """

    id: int
    job_id: int
    name: str
    counts: Sequence[int]
    replicas: int
    task_count: int
    min_available: int
    killed_by_dependency: int
    startable_at: datetime | None
    retries_failure: int
    retries_preemption: int
    retries_system: int
    at_most_once: bool
    exclusive: str
    retry_rules: str | None = None
    resources: str = "{}"
    shape_id: int = 0

    def __str__(self) -> str:
        return f"group {self.id} ({self.name})"


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """Tasks of a group by state. `excused`: tasks killed by a dependency.

    Excused tasks do not make their job KILLED.
    """

    counts: Mapping[TaskState, int]
    excused: int = 0


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """A task. `resources`: its own request in JSON, if a retry rule increased it."""

    id: int
    job_id: int
    group_id: int
    index: int
    state: TaskState
    attempt_number: int
    attempt_uid: UUID | None
    attempt_open: bool
    failure_count: int
    preemption_count: int
    system_failure_count: int
    system_row: int
    consecutive_crashes: int
    finished_at: datetime | None
    resources: str | None = None
    shape_id: int = 0

    def __str__(self) -> str:
        return f"task {self.id}"


@dataclass(frozen=True, slots=True)
class CacheUseRecord:
    """A task whose group uses the cache.

    `entry_id`: the entry with its result; `has_entry`: that entry exists. `is_reserved`:
    its group serializes identical tasks, and its key is known; `owner_uid`: the attempt that has
    the reservation of the key.
    """

    task_id: int
    job_id: int
    state: TaskState
    status: CacheStatus
    is_blocked: bool
    attempt_uid: UUID | None
    entry_id: int | None
    has_entry: bool
    is_reserved: bool
    owner_uid: UUID | None

    def __str__(self) -> str:
        return f"task {self.task_id}"


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """An attempt. `resources`: its own request in JSON, if a retry rule increased it."""

    uid: UUID
    task_id: int
    group_id: int
    job_id: int
    cell_id: int
    number: int
    state: TaskState
    charged: str
    charge: int
    container_id: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    released_at: datetime | None
    release_kind: str
    reason: str = ""
    retry_rule: int | None = None
    concurrency_id: int | None = None
    resources: str | None = None

    def __str__(self) -> str:
        return f"attempt {self.uid}"


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A row of history."""

    id: int
    job_id: int
    task_id: int | None
    attempt_uid: UUID | None
    from_state: TaskState | None
    to_state: TaskState | None
    attempt_state: TaskState | None
    reason: str

    def __str__(self) -> str:
        return f"job {self.job_id}" if self.task_id is None else f"task {self.task_id}"


@dataclass(frozen=True, slots=True)
class DependencyRecord:
    """An unmet dependency of a job. `other`: the job that it waits for; None if it is deleted."""

    id: int
    job_id: int
    on_job_id: int
    until: str
    failed_at: datetime | None
    other: JobMilestones | None

    def __str__(self) -> str:
        return f"job {self.job_id}"


@dataclass(frozen=True, slots=True)
class CellRecord:
    """A cell. `used`: amounts that unreleased attempts of its current incarnation hold."""

    id: int
    name: str
    incarnation: str
    lease_incarnation: str | None
    capacity: Mapping[str, int]
    used: Mapping[str, int]

    def __str__(self) -> str:
        return f"cell {self.id} ({self.name})"


@dataclass(frozen=True, slots=True)
class StoredTotalRecord:
    """The total of a project's stored bytes. `counted_bytes`: the sum of its counted sizes."""

    project_id: int
    total_bytes: int
    counted_bytes: int

    def __str__(self) -> str:
        return f"project {self.project_id}"


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A concurrency key in use: its unreleased attempts, and the largest limit of their jobs.

    `limit`: None: one of the jobs has none.
    """

    project_id: int
    key: str
    held: int
    limit: int | None

    def __str__(self) -> str:
        return f"concurrency key {self.key} of project {self.project_id}"


@dataclass(frozen=True, slots=True)
class FiringRecord:
    """An instant of a schedule that started a job. `guid`: the one that its job must have.

    `job_project_id`: None if the job does not exist any more. `starts`: the instants with this job.
    """

    id: int
    project_id: int
    guid: str
    job_id: int
    job_project_id: int | None
    job_guid: str | None
    starts: int

    def __str__(self) -> str:
        return f"instant {self.guid} of project {self.project_id}"


Record = (
    JobRecord
    | GroupRecord
    | TaskRecord
    | CacheUseRecord
    | AttemptRecord
    | StepRecord
    | DependencyRecord
    | CellRecord
    | StoredTotalRecord
    | KeyRecord
    | FiringRecord
)
"""A row; its text identifies it in violations."""


@dataclass(frozen=True)
class IntegrityRows:
    """All rows of some jobs and cells, totals of projects, keys in use, and instants of schedules.

    `task_counts`: by group. `awaited`: jobs with a waiting dependant or an unfinished child.
    `known_cells`: the ids of all cells.
    """

    jobs: Sequence[JobRecord] = ()
    groups: Sequence[GroupRecord] = ()
    task_counts: Mapping[int, TaskCounts] = field(default_factory=dict)
    tasks: Sequence[TaskRecord] = ()
    cache_uses: Sequence[CacheUseRecord] = ()
    attempts: Sequence[AttemptRecord] = ()
    steps: Sequence[StepRecord] = ()
    dependencies: Sequence[DependencyRecord] = ()
    awaited: frozenset[int] = frozenset()
    cells: Sequence[CellRecord] = ()
    totals: Sequence[StoredTotalRecord] = ()
    keys: Sequence[KeyRecord] = ()
    firings: Sequence[FiringRecord] = ()
    known_cells: frozenset[int] = frozenset()

    @cached_property
    def job_of(self) -> dict[int, JobRecord]:
        """Return jobs by id."""
        return {job.id: job for job in self.jobs}

    @cached_property
    def group_of(self) -> dict[int, GroupRecord]:
        """Return groups by id."""
        return {group.id: group for group in self.groups}

    @cached_property
    def task_of(self) -> dict[int, TaskRecord]:
        """Return tasks by id."""
        return {task.id: task for task in self.tasks}

    @cached_property
    def hits(self) -> frozenset[int]:
        """Return the tasks that have their result from the cache."""
        return frozenset(use.task_id for use in self.cache_uses if use.entry_id is not None)

    @cached_property
    def groups_of_job(self) -> Mapping[int, list[GroupRecord]]:
        """Return groups by job."""
        return _by("job_id", self.groups)

    @cached_property
    def tasks_of_group(self) -> Mapping[int, list[TaskRecord]]:
        """Return tasks by group."""
        return _by("group_id", self.tasks)

    @cached_property
    def attempts_of_task(self) -> Mapping[int, list[AttemptRecord]]:
        """Return attempts by task, in order of number."""
        return _by("task_id", sorted(self.attempts, key=lambda attempt: attempt.number))

    @cached_property
    def steps_of(self) -> Mapping[str, list[StepRecord]]:
        """Return the history by task or job (such as "task 7"), oldest first."""
        steps = defaultdict(list)
        for step in sorted(self.steps, key=lambda step: step.id):
            steps[str(step)].append(step)
        return steps

    def counted(self, group: GroupRecord) -> TaskCounts:
        """Return the tasks of a group by state."""
        return self.task_counts.get(group.id, TaskCounts({}))


def _by(column: str, records: Iterable[R]) -> defaultdict[Any, list[R]]:
    grouped: defaultdict[Any, list[R]] = defaultdict(list)
    for record in records:
        grouped[getattr(record, column)].append(record)
    return grouped
