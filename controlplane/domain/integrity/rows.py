"""Rows that invariants are checked on: complete jobs, and cells."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TypeVar
from uuid import UUID

from controlplane.contract.states import TaskState

K = TypeVar("K")
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
    is_bouncing: bool
    waits_for_jobs: bool
    started_at: datetime | None
    finished_at: datetime | None
    settled_at: datetime | None


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A group; `counts[n]` is the stored number of its tasks in state n."""

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


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """A task."""

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
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """An attempt."""

    uid: UUID
    task_id: int
    group_id: int
    job_id: int
    cell_id: int
    incarnation: str
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


@dataclass(frozen=True, slots=True)
class CellRecord:
    """A cell; `used`: the amounts that unreleased attempts of its present incarnation hold."""

    id: int
    name: str
    incarnation: str
    lease_incarnation: str | None
    capacity: Mapping[str, int]
    used: Mapping[str, int]


@dataclass(frozen=True)
class IntegrityRows:
    """All rows of some jobs, and some cells. `known_cells`: the ids of all cells."""

    jobs: Sequence[JobRecord] = ()
    groups: Sequence[GroupRecord] = ()
    tasks: Sequence[TaskRecord] = ()
    attempts: Sequence[AttemptRecord] = ()
    steps: Sequence[StepRecord] = ()
    cells: Sequence[CellRecord] = ()
    known_cells: frozenset[int] = field(default_factory=frozenset)

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
    def groups_of_job(self) -> dict[int, list[GroupRecord]]:
        """Return groups by job."""
        return _by(self.groups, lambda group: group.job_id)

    @cached_property
    def tasks_of_group(self) -> dict[int, list[TaskRecord]]:
        """Return tasks by group."""
        return _by(self.tasks, lambda task: task.group_id)

    @cached_property
    def tasks_of_job(self) -> dict[int, list[TaskRecord]]:
        """Return tasks by job."""
        return _by(self.tasks, lambda task: task.job_id)

    @cached_property
    def attempts_of_task(self) -> dict[int, list[AttemptRecord]]:
        """Return attempts by task, in order of number."""
        ordered = sorted(self.attempts, key=lambda attempt: attempt.number)
        return _by(ordered, lambda attempt: attempt.task_id)

    @cached_property
    def steps_of_task(self) -> dict[int, list[StepRecord]]:
        """Return history of tasks, oldest first."""
        ordered = sorted(self.steps, key=lambda step: step.id)
        return _by((step for step in ordered if step.task_id is not None), _task_of_step)

    @cached_property
    def steps_of_job(self) -> dict[int, list[StepRecord]]:
        """Return history of the jobs themselves, oldest first."""
        ordered = sorted(self.steps, key=lambda step: step.id)
        return _by((step for step in ordered if step.task_id is None), lambda step: step.job_id)


@dataclass(frozen=True, slots=True)
class InvariantViolation:
    """A violation of invariant `number` by `subject` ("task 7")."""

    number: int
    subject: str
    text: str

    def __str__(self) -> str:
        return f"INV-{self.number} {self.subject}: {self.text}"


Finding = tuple[str, str]
"""Subject and text of a violation."""


@dataclass(frozen=True, slots=True)
class Invariant:
    """One invariant; `find` yields its violations. `upheld_by`: the component that ensures it."""

    number: int
    statement: str
    upheld_by: str
    find: Callable[[IntegrityRows], Iterable[Finding]]


def _task_of_step(step: StepRecord) -> int:
    assert step.task_id is not None
    return step.task_id


def _by(records: Iterable[R], key: Callable[[R], K]) -> dict[K, list[R]]:
    found: dict[K, list[R]] = defaultdict(list)
    for record in records:
        found[key(record)].append(record)
    return found
