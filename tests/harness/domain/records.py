"""Rows for integrity checks, in one line each; the defaults are those of a job that began."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from controlplane.contract.states import TaskState as S
from controlplane.domain.integrity.invariant import Invariant, Repair
from controlplane.domain.integrity.rows import (
    AttemptRecord,
    CellRecord,
    DependencyRecord,
    GroupRecord,
    IntegrityRows,
    JobRecord,
    StepRecord,
    TaskCounts,
    TaskRecord,
)

T0 = datetime(2030, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """An instant, in seconds after the beginning."""
    return T0 + timedelta(seconds=seconds)


def uid(number: int) -> UUID:
    """The attempt with this number."""
    return UUID(int=number)


def job(state: S = S.RUNNING, job_id: int = 1, **changes: Any) -> JobRecord:
    """Job 1, of one task that must succeed."""
    facts: dict[str, Any] = {
        "id": job_id,
        "state": state,
        "ending_as": None,
        "min_available": 1,
        "explicit_minimum": False,
        "max_task_failures": 0,
        "coscheduled": False,
        "is_requeuing": False,
        "waits_for_jobs": False,
        "started_at": None,
        "finished_at": None,
        "settled_at": None,
        "is_watched": False,
    }
    return JobRecord(**{**facts, **changes})


def group(counts: Mapping[S, int] | None = None, **changes: Any) -> GroupRecord:
    """Group 2 of job 1; as many tasks as it counts."""
    listed = [(counts or {}).get(S(n), 0) if n else 0 for n in range(11)]
    facts: dict[str, Any] = {
        "id": 2,
        "job_id": 1,
        "name": "main",
        "counts": listed,
        "replicas": sum(listed),
        "task_count": sum(listed),
        "min_available": 1,
        "killed_by_dependency": 0,
        "startable_at": T0,
        "retries_failure": 0,
        "retries_preemption": 100,
        "retries_system": 3,
        "at_most_once": False,
        "exclusive": "",
    }
    return GroupRecord(**{**facts, **changes})


def task(state: S = S.PENDING, task_id: int = 3, **changes: Any) -> TaskRecord:
    """Task 3 of group 2, with index 0."""
    facts: dict[str, Any] = {
        "id": task_id,
        "job_id": 1,
        "group_id": 2,
        "index": 0,
        "state": state,
        "attempt_number": 0,
        "attempt_uid": None,
        "attempt_open": False,
        "failure_count": 0,
        "preemption_count": 0,
        "system_failure_count": 0,
        "system_row": 0,
        "consecutive_crashes": 0,
        "finished_at": None,
    }
    return TaskRecord(**{**facts, **changes})


def attempt(state: S = S.RUNNING, number: int = 1, **changes: Any) -> AttemptRecord:
    """An attempt of task 3 on cell 5, its uid its number."""
    facts: dict[str, Any] = {
        "uid": uid(number),
        "task_id": 3,
        "group_id": 2,
        "job_id": 1,
        "cell_id": 5,
        "number": number,
        "state": state,
        "charged": "",
        "charge": 0,
        "container_id": "",
        "created_at": at(1),
        "started_at": None,
        "finished_at": None,
        "released_at": None,
        "release_kind": "",
    }
    return AttemptRecord(**{**facts, **changes})


def released(state: S, number: int = 1, seconds: float = 9, **changes: Any) -> AttemptRecord:
    """An attempt whose cell confirmed that nothing of it is left."""
    gone = {"released_at": at(seconds), "release_kind": "confirmed"}
    return attempt(state, number, **{**gone, **changes})


def step(step_id: int, old: S | None, new: S | None, **changes: Any) -> StepRecord:
    """A step of task 3."""
    facts: dict[str, Any] = {
        "id": step_id,
        "job_id": 1,
        "task_id": 3,
        "attempt_uid": None,
        "from_state": old,
        "to_state": new,
        "attempt_state": None,
        "reason": "placed",
    }
    return StepRecord(**{**facts, **changes})


def cell(**changes: Any) -> CellRecord:
    """Cell 5 with its lease, empty."""
    facts: dict[str, Any] = {
        "id": 5,
        "name": "north",
        "incarnation": "one",
        "lease_incarnation": "one",
        "capacity": {"cpu_millis": 1000},
        "used": {},
    }
    return CellRecord(**{**facts, **changes})


def dependency(**changes: Any) -> DependencyRecord:
    """Job 1 waits until job 8 has succeeded; job 8 is deleted."""
    facts: dict[str, Any] = {
        "id": 7,
        "job_id": 1,
        "on_job_id": 8,
        "until": "succeeded",
        "failed_at": None,
        "other": None,
    }
    return DependencyRecord(**{**facts, **changes})


def integrity_rows(
    *, tasks: Sequence[TaskRecord] = (), steps: Sequence[StepRecord] = (), **others: Any
) -> IntegrityRows:
    """Return the rows with counted tasks; a step "dependency_failed" excuses its task."""
    excused = {step.task_id for step in steps if step.reason == "dependency_failed"}
    counts = {
        group_id: TaskCounts(
            Counter(task.state for task in tasks if task.group_id == group_id),
            sum(task.id in excused for task in tasks if task.group_id == group_id),
        )
        for group_id in {task.group_id for task in tasks}
    }
    return IntegrityRows(tasks=tasks, steps=steps, task_counts=counts, **others)


def found(invariant: Invariant, **rows: Any) -> list[tuple[str, str]]:
    """What contradicts the invariant, and how."""
    return [(str(item.row), item.text) for item in invariant.check(integrity_rows(**rows))]


def repairs(invariant: Invariant, **rows: Any) -> list[tuple[Repair | None, int]]:
    """What a recount writes for what contradicts the invariant, to the row with which id."""
    return [(item.repair, item.row_id) for item in invariant.check(integrity_rows(**rows))]
