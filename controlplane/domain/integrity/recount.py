"""Recomputation of derived data: counts, job states, and flags of open work and dependencies."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum

from controlplane.contract.states import TaskState as S
from controlplane.domain.state.dependencies import DependencyStatus, JobMilestones, job_standing
from controlplane.domain.state.effects import ChangeTask
from controlplane.domain.state.facts import TaskFacts
from controlplane.domain.state.job_rollup import GroupRow, JobRow, roll_job
from controlplane.domain.state.states import ACTIVE, TERMINAL, Reason
from controlplane.domain.state.task_changes import ChangeCause, change_task
from controlplane.domain.state.transitions import Event


class WrongFlag(Enum):
    """The repair for a wrong flag."""

    HELD = "set attempt_open"
    FREE = "clear attempt_open"
    ADRIFT = "requeue the task"
    WATCHED = "set is_watched"
    BLOCKED = "set waits_for_jobs"
    MET = "mark a dependency as met"
    VAIN = "mark a dependency as failed"
    NOTHING = "report it"


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """Counts of a group's tasks by state. `excused`: tasks killed by a dependency.

    Excused tasks do not make their job KILLED.
    """

    counts: Mapping[S, int]
    excused: int = 0


@dataclass(frozen=True, slots=True)
class Difference:
    """A stored value that differs from the derived one. `group_id` None: a job's state, or a flag.

    A terminal state is not reverted, so the difference cannot be repaired. `flag`: the repair for
    the row `row_id`, if the value is neither counts nor a state.
    """

    job_id: int
    group_id: int | None
    text: str
    is_mendable: bool = True
    flag: WrongFlag | None = None
    row_id: int = 0


@dataclass(frozen=True, slots=True)
class HeldTask:
    """A task with an `attempt_open` that contradicts its attempts."""

    task_id: int
    job_id: int
    state: S
    attempt_open: bool
    is_held: bool


@dataclass(frozen=True, slots=True)
class OpenDependency:
    """An open dependency and the milestones of the other job; None: that job was deleted."""

    dependency_id: int
    job_id: int
    on_job_id: int
    until: str
    other: JobMilestones | None


def find_wrong_tasks(tasks: Iterable[HeldTask]) -> list[Difference]:
    """Return tasks with a wrong `attempt_open`, or active ones without an attempt."""
    found = []
    for task in tasks:
        name = f"task {task.task_id} ({task.state.name})"
        if task.is_held and task.attempt_open:
            flag, text = WrongFlag.NOTHING, "is held by an attempt that is not its present one"
        elif task.is_held:
            flag, text = WrongFlag.HELD, "attempt_open is false, but an attempt is not released"
        elif task.state in ACTIVE:
            flag, text = WrongFlag.ADRIFT, "has no attempt"
        else:
            flag, text = WrongFlag.FREE, "attempt_open is true, but all attempts are released"
        is_mendable = flag is not WrongFlag.NOTHING
        found.append(
            Difference(task.job_id, None, f"{name}: {text}", is_mendable, flag, task.task_id)
        )
    return found


def find_wrong_links(
    *, unwatched: Iterable[int], unblocked: Mapping[int, bool], waits: Iterable[OpenDependency]
) -> list[Difference]:
    """Return jobs with wrong dependency flags.

    `unwatched`: jobs that others depend on and that lack the flag. `unblocked`: jobs that wait for
    others and lack the flag, and whether no task may start yet.
    """
    found = [
        Difference(
            job_id,
            None,
            f"job {job_id}: is_watched is false, but other jobs depend on it",
            True,
            WrongFlag.WATCHED,
            job_id,
        )
        for job_id in unwatched
    ]
    for job_id, is_harmless in unblocked.items():
        text = f"job {job_id}: waits_for_jobs is false, but it waits for other jobs"
        flag = WrongFlag.BLOCKED if is_harmless else WrongFlag.NOTHING
        found.append(Difference(job_id, None, text, is_harmless, flag, job_id))
    for wait in waits:
        stands = _standing_of(wait)
        if stands is not DependencyStatus.OPEN:
            flag = WrongFlag.MET if stands is DependencyStatus.SATISFIED else WrongFlag.VAIN
            what = f"its dependency on job {wait.on_job_id} (until {wait.until})"
            so = "is met, but open" if flag is WrongFlag.MET else "cannot be met, but is open"
            text = f"job {wait.job_id}: {what} {so}"
            found.append(Difference(wait.job_id, None, text, True, flag, wait.dependency_id))
    return found


def _standing_of(wait: OpenDependency) -> DependencyStatus:
    """Return the status of a dependency.

    A job is deleted only after it settled; the state that it ended in is no longer known.
    """
    if wait.other is not None:
        return job_standing(wait.other, wait.until)
    has_come = wait.until in ("finished", "settled")
    return DependencyStatus.SATISFIED if has_come else DependencyStatus.IMPOSSIBLE


def send_back(facts: TaskFacts, *, now: datetime) -> ChangeTask:
    """Requeue an active task without an attempt, free of charge.

    A task that runs at most once ends WORKER_FAILED instead, since its outcome is unknown.
    """
    cause = ChangeCause(Reason.CONTAINER_VANISHED, "its attempt was missing")
    change = change_task(facts, Event.VANISHED, cause, now=now)
    return replace(change, counters=facts.counters)


def find_differences(
    job: JobRow, groups: Sequence[GroupRow], counted: Mapping[int, TaskCounts], *, now: datetime
) -> list[Difference]:
    """Return where the job and its groups differ from the states of its tasks."""
    found: list[Difference] = []
    right: list[GroupRow] = []
    for group in groups:
        group_id = group.facts.group_id
        found += [
            Difference(job.job_id, group_id, f"group {group_id} ({group.facts.name}): {text}")
            for text in _wrong_counts(group, counted[group_id])
        ]
        facts = replace(group.facts, counts=counted[group_id].counts)
        right.append(replace(group, facts=facts, killed_by_dependency=counted[group_id].excused))
    return found + _wrong_state(job, right, now)


def _wrong_counts(group: GroupRow, counted: TaskCounts) -> list[str]:
    stored, found = _in_words(group.facts.counts), _in_words(counted.counts)
    texts = [] if stored == found else [f"counts {stored}, its tasks are {found}"]
    if group.killed_by_dependency != counted.excused:
        stored_killed = f"killed_by_dependency is {group.killed_by_dependency}"
        texts.append(f"{stored_killed}, a dependency killed {counted.excused}")
    return texts


def _wrong_state(job: JobRow, groups: Sequence[GroupRow], now: datetime) -> list[Difference]:
    has_ended = job.state in TERMINAL
    # Derived as if the job had not ended, since `roll_job` returns an ended job unchanged.
    follows = roll_job(replace(job, state=S.RUNNING) if has_ended else job, groups, now=now)
    if follows.state is not job.state:
        text = f"is {job.state.name}, {follows.state.name} follows from its tasks"
    elif follows.ending_as is not job.ending_as and follows.ending_as is not None:
        text = f"is not ending, {follows.ending_as.name} follows from its tasks"
    else:
        return []
    return [Difference(job.job_id, None, f"job {job.job_id}: {text}", is_mendable=not has_ended)]


def _in_words(counts: Mapping[S, int]) -> str:
    parts = [f"{counts[state]} {state.name}" for state in S if counts.get(state)]
    return ", ".join(parts) or "none"
